//! Every route, once: its method and path, who may ask, what its refusals are called in the audit trail, and what
//! it is for. The router is built from this table, and so are the OpenAPI document and, from that, the tests that try
//! each door without a key.

use std::sync::LazyLock;

use axum::{
    Router,
    routing::{MethodRouter, delete, get, patch, post, put},
};

use super::{
    access, audit, cancel, dispatch, executions, health, hooks, metrics, node, node_keys, node_stream, nodes,
    openapi::Operation, operations, outputs, ready, rollout, version, violations, watch,
};
use crate::control::Shared;

/// What a caller must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// An operator token, or a token of the OIDC issuer.
    Operator,
    /// The NSK of the node that the path names.
    Node,
    /// A bootstrap token.
    Newcomer,
    /// A URL that this service signed.
    Signed,
    /// Nothing, from this machine.
    Here,
    Anybody,
}

impl Who {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Node => "node",
            Self::Newcomer => "newcomer",
            Self::Signed => "signed",
            Self::Here => "here",
            Self::Anybody => "anybody",
        }
    }
}

pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) who: Who,
    /// The relation of its denials.
    relation: &'static str,
    serve: fn() -> MethodRouter<Shared>,
    /// What the OpenAPI document says of it.
    pub(super) operation: fn() -> Operation,
}

const fn route(
    (method, path): (&'static str, &'static str),
    who: Who,
    relation: &'static str,
    serve: fn() -> MethodRouter<Shared>,
    operation: fn() -> Operation,
) -> Route {
    Route {
        method,
        path,
        who,
        relation,
        serve,
        operation,
    }
}

#[rustfmt::skip]
pub(super) const ROUTES: &[Route] = &[
    route(("POST", "/v1/projects/{project}/executions:dispatch"), Who::Operator, "execution.dispatch", || post(dispatch::dispatch), operations::dispatch),
    route(("POST", "/v1/projects/{project}/executions/dispatch"), Who::Operator, "execution.dispatch", || post(dispatch::dispatch), operations::dispatch_newer),
    route(("POST", "/v1/projects/{project}/executions:preview"), Who::Operator, "execution.preview", || post(dispatch::preview), operations::preview),
    route(("POST", "/v1/projects/{project}/executions/preview"), Who::Operator, "execution.preview", || post(dispatch::preview), operations::preview_newer),
    route(("GET", "/v1/projects/{project}/executions"), Who::Operator, "execution.list", || get(executions::list), operations::list_executions),
    route(("GET", "/v1/projects/{project}/executions/{execution}"), Who::Operator, "execution.get", || get(executions::get), operations::get_execution),
    route(("GET", "/v1/projects/{project}/executions/{execution}/targets"), Who::Operator, "execution.get", || get(executions::targets), operations::execution_targets),
    route(("GET", "/v1/projects/{project}/executions/{execution}/timeline"), Who::Operator, "execution.get", || get(executions::timeline), operations::execution_timeline),
    route(("POST", "/v1/projects/{project}/executions/{execution}/cancel"), Who::Operator, "execution.cancel", || post(cancel::cancel_execution), operations::cancel_execution),
    route(("POST", "/v1/projects/{project}/executions/{execution}/pause"), Who::Operator, "execution.pause", || post(rollout::pause), operations::pause_execution),
    route(("POST", "/v1/projects/{project}/executions/{execution}/resume"), Who::Operator, "execution.resume", || post(rollout::resume), operations::resume_execution),
    route(("GET", "/v1/projects/{project}/executions/{execution}/events"), Who::Operator, "execution.get", || get(watch::execution_events), operations::execution_events),
    route(("GET", "/v1/projects/{project}/executions/{execution}/targets/{node}/output"), Who::Operator, "execution.get", || get(outputs::read), operations::read_output),
    route(("GET", "/v1/projects/{project}/actions/{action}"), Who::Operator, "action.get", || get(hooks::get_action), operations::get_action),
    route(("GET", "/v1/projects/{project}/hooks"), Who::Operator, "hook.list", || get(hooks::list_hooks), operations::list_hooks),
    route(("POST", "/v1/projects/{project}/hooks/{hook}/approve"), Who::Operator, "hook.approve", || post(hooks::approve_hook), operations::approve_hook),
    route(("POST", "/v1/projects/{project}/bootstrap-tokens"), Who::Operator, "token.issue", || post(access::issue_token), operations::issue_bootstrap_token),
    route(("GET", "/v1/projects/{project}/bootstrap-tokens"), Who::Operator, "token.list", || get(access::list_bootstrap_tokens), operations::list_bootstrap_tokens),
    route(("DELETE", "/v1/projects/{project}/bootstrap-tokens/{token}"), Who::Operator, "token.revoke", || delete(access::revoke_bootstrap_token), operations::revoke_bootstrap_token),
    route(("GET", "/v1/operator-tokens"), Who::Operator, "token.list", || get(access::list_operator_tokens), operations::list_operator_tokens),
    route(("POST", "/v1/operator-tokens"), Who::Operator, "token.issue", || post(access::create_operator_token), operations::issue_operator_token),
    route(("DELETE", "/v1/operator-tokens/{token}"), Who::Operator, "token.revoke", || delete(access::revoke_operator_token), operations::revoke_operator_token),
    route(("POST", "/v1/operator-tokens/{token}/rotate"), Who::Operator, "token.rotate", || post(access::rotate_operator_token), operations::rotate_operator_token),
    route(("GET", "/v1/authz/relation-tuples"), Who::Operator, "grant.list", || get(access::list_tuples), operations::list_tuples),
    route(("POST", "/v1/authz/relation-tuples"), Who::Operator, "grant.create", || post(access::create_tuple), operations::create_tuple),
    route(("DELETE", "/v1/authz/relation-tuples/{tuple}"), Who::Operator, "grant.delete", || delete(access::delete_tuple), operations::delete_tuple),
    route(("POST", "/v1/authz/check"), Who::Operator, "authz.check", || post(access::check), operations::check),
    route(("GET", "/v1/auth/whoami"), Who::Operator, "auth.whoami", || get(access::whoami), operations::whoami),
    route(("GET", "/v1/nodes"), Who::Operator, "node.list", || get(nodes::list_nodes), operations::list_nodes),
    route(("GET", "/v1/nodes/{node}"), Who::Operator, "node.get", || get(nodes::get_node), operations::get_node),
    route(("DELETE", "/v1/nodes/{node}"), Who::Operator, "node.decommission", || delete(nodes::decommission_node), operations::decommission_node),
    route(("PATCH", "/v1/nodes/{node}/labels"), Who::Operator, "node.label", || patch(nodes::patch_labels), operations::patch_labels),
    route(("POST", "/v1/projects/{project}/nodes/rotate-keys"), Who::Operator, "node.rotate_key", || post(node_keys::ask), operations::rotate_node_keys),
    route(("GET", "/v1/integrity-violations"), Who::Operator, "violation.list", || get(violations::list), operations::list_violations),
    route(("POST", "/v1/integrity-violations/{violation}/acknowledge"), Who::Operator, "violation.acknowledge", || post(violations::acknowledge), operations::acknowledge_violation),
    route(("POST", "/v1/labels/selectors/preview"), Who::Operator, "selector.preview", || post(nodes::preview_selector), operations::preview_selector),
    route(("GET", "/v1/audit"), Who::Operator, "audit.list", || get(audit::list), operations::list_audit),

    route(("POST", "/v1/nodes:enroll"), Who::Newcomer, "node.enroll", || post(node::enroll), operations::enroll),
    route(("GET", "/v1/nodes/{node}/events"), Who::Node, "node.events", || get(node_stream::events), operations::node_events),
    route(("POST", "/v1/nodes/{node}/heartbeat"), Who::Node, "node.heartbeat", || post(node::heartbeat), operations::heartbeat),
    route(("POST", "/v1/nodes/{node}/nsk"), Who::Node, "node.rotate_key", || post(node_keys::fetch), operations::fetch_nsk),
    route(("PUT", "/v1/nodes/{node}/capabilities"), Who::Node, "node.capabilities", || put(node::capabilities), operations::capabilities),
    route(("POST", "/v1/nodes/{node}/integrity-violations"), Who::Node, "node.violations", || post(node::violations), operations::report_violations),
    route(("POST", "/v1/nodes/{node}/executions/{execution}"), Who::Node, "node_execution_callback.apply", || post(node::callback), operations::callback),
    route(("PUT", "/v1/outputs/{execution}/{node}/output"), Who::Signed, "output.upload", || put(outputs::accept), operations::upload_output),

    route(("GET", "/metrics"), Who::Here, "metrics", || get(metrics::show), operations::metrics),
    route(("GET", "/v1/openapi.json"), Who::Anybody, "openapi", || get(super::openapi_document), operations::openapi),
    route(("GET", "/v1/auth/config"), Who::Anybody, "auth.config", || get(access::auth_config), operations::auth_config),
    route(("GET", "/v1/version"), Who::Anybody, "version", || get(version), operations::version),
    route(("GET", "/v1/health"), Who::Anybody, "health", || get(health), operations::health),
    route(("GET", "/readyz"), Who::Anybody, "health", || get(ready), operations::ready),
    route(("GET", "/healthz"), Who::Anybody, "health", || get(|| async { "ok\n" }), operations::alive),
];

pub(super) fn router() -> Router<Shared> {
    ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(route.path, (route.serve)())
    })
}

/// The names that the query of an operator's request may have: those of the document.
pub(super) fn query_names(method: &str, path: &str) -> &'static [&'static str] {
    type Names = Vec<(&'static str, &'static str, Vec<&'static str>)>;
    static NAMES: LazyLock<Names> = LazyLock::new(|| {
        let names = |route: &Route| (route.method, route.path, (route.operation)().query_names());
        ROUTES.iter().map(names).collect()
    });
    // HEAD is answered where GET is.
    let method = if method == "HEAD" { "GET" } else { method };
    NAMES
        .iter()
        .find(|(of, at, _)| *of == method && *at == path)
        .map_or(&[], |(_, _, names)| names.as_slice())
}

/// What a refusal at this route is called in the audit trail.
pub(super) fn relation(method: &str, path: &str) -> &'static str {
    // The router answers it wherever it answers the other.
    let method = if method == "HEAD" { "GET" } else { method };
    ROUTES
        .iter()
        .find(|route| route.path == path && route.method == method)
        .map_or("unknown", |route| route.relation)
}
