// An OpenID provider for the stories of tests/tests/oidc.rs, which say in one JSON argument what it is to be:
// {port, cert, key, audience, accessTokenTTL, jwks, groups: {ACCOUNT: [GROUP]}}. It runs on the loopback interface only.
import { createServer } from 'node:https';
import { createRequire } from 'node:module';
import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import { pathToFileURL } from 'node:url';

// The packages lie where scripts/tools puts them, and not beside this file.
const resolve = createRequire(`${process.env.OIDC_PROVIDER_DIR}/`).resolve;
const { Provider } = await import(pathToFileURL(resolve('oidc-provider')));

const story = JSON.parse(process.argv[2]);
// By way of PEM: Node 20 exports a key under the lock of the job that made it, and can wait for that lock for ever when the
// job is collected meanwhile.
const made = (kid, type, options) => {
  const privateKeyEncoding = { type: 'pkcs8', format: 'pem' };
  const { privateKey } = generateKeyPairSync(type, { ...options, privateKeyEncoding });
  return { ...createPrivateKey(privateKey).export({ format: 'jwk' }), kid, use: 'sig' };
};
const keys = [
  ...story.jwks,
  made(`rsa-${process.pid}`, 'rsa', { modulusLength: 2048 }),
  made(`ec-${process.pid}`, 'ec', { namedCurve: 'P-256' }),
];
const robot = (alg) => ({
  client_id: `robot-${alg}`,
  client_secret: 'a-secret-of-the-stories',
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
});

const provider = new Provider(`https://127.0.0.1:${story.port}`, {
  jwks: { keys },
  clients: [
    {
      client_id: 'muster-cli',
      application_type: 'native',
      token_endpoint_auth_method: 'none',
      grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token'],
      redirect_uris: [],
      response_types: [],
    },
    ...['RS256', 'PS256', 'ES256', 'EdDSA'].map(robot),
  ],
  findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  extraTokenClaims: (ctx, token) => ({ groups: story.groups[token.accountId ?? token.clientId] ?? [] }),
  ttl: { Interaction: 600, Session: 600, Grant: 600, DeviceCode: 600, RefreshToken: 600 },
  // Each refresh token counts once; a second use takes the whole grant back.
  rotateRefreshToken: true,
  enabledJWA: {
    idTokenSigningAlgValues: ['RS256', 'PS256', 'ES256', 'EdDSA'],
  },
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo: (ctx, resource, client) => ({
        scope: '',
        audience: resource,
        accessTokenTTL: story.accessTokenTTL,
        accessTokenFormat: 'jwt',
        jwt: { sign: { alg: client.clientId.split('robot-')[1] ?? 'ES256' } },
      }),
    },
  },
});

// A person at a terminal is asked for every second, not every five.
provider.use(async (ctx, next) => {
  await next();
  if (ctx.body?.device_code) ctx.body.interval = 1;
});

createServer({ cert: story.cert, key: story.key }, provider.callback()).listen(story.port, '127.0.0.1');
