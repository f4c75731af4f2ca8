//! Every route, once: its method and path, who may ask, and what its refusals are called in the audit trail. The
//! router is built from this table, and so are the tests that try each door without a key.

use axum::{
    Router,
    routing::{MethodRouter, delete, get, patch, post, put},
};

use super::{access, audit, cancel, health, metrics, node, operator, outputs, ready, version, watch};
use crate::control::Shared;

/// What a caller must show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// An operator token.
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
    const fn as_str(self) -> &'static str {
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
    method: &'static str,
    path: &'static str,
    who: Who,
    /// The relation of its denials.
    relation: &'static str,
    serve: fn() -> MethodRouter<Shared>,
}

const fn route(
    (method, path): (&'static str, &'static str),
    who: Who,
    relation: &'static str,
    serve: fn() -> MethodRouter<Shared>,
) -> Route {
    Route {
        method,
        path,
        who,
        relation,
        serve,
    }
}

#[rustfmt::skip]
const ROUTES: &[Route] = &[
    route(("POST", "/v1/projects/{project}/executions:dispatch"), Who::Operator, "execution.dispatch", || post(operator::dispatch)),
    route(("POST", "/v1/projects/{project}/executions/dispatch"), Who::Operator, "execution.dispatch", || post(operator::dispatch)),
    route(("POST", "/v1/projects/{project}/executions:preview"), Who::Operator, "execution.preview", || post(operator::preview)),
    route(("POST", "/v1/projects/{project}/executions/preview"), Who::Operator, "execution.preview", || post(operator::preview)),
    route(("GET", "/v1/projects/{project}/executions"), Who::Operator, "execution.list", || get(operator::list_executions)),
    route(("GET", "/v1/projects/{project}/executions/{execution}"), Who::Operator, "execution.get", || get(operator::get_execution)),
    route(("POST", "/v1/projects/{project}/executions/{execution}/cancel"), Who::Operator, "execution.cancel", || post(cancel::cancel_execution)),
    route(("GET", "/v1/projects/{project}/executions/{execution}/events"), Who::Operator, "execution.get", || get(watch::execution_events)),
    route(("GET", "/v1/projects/{project}/executions/{execution}/targets/{node}/output"), Who::Operator, "execution.get", || get(outputs::read)),
    route(("GET", "/v1/projects/{project}/actions/{action}"), Who::Operator, "action.get", || get(operator::get_action)),
    route(("GET", "/v1/projects/{project}/hooks"), Who::Operator, "hook.list", || get(operator::list_hooks)),
    route(("POST", "/v1/projects/{project}/hooks/{hook}/approve"), Who::Operator, "hook.approve", || post(operator::approve_hook)),
    route(("POST", "/v1/projects/{project}/bootstrap-tokens"), Who::Operator, "token.issue", || post(operator::issue_token)),
    route(("GET", "/v1/projects/{project}/bootstrap-tokens"), Who::Operator, "token.list", || get(access::list_bootstrap_tokens)),
    route(("DELETE", "/v1/projects/{project}/bootstrap-tokens/{token}"), Who::Operator, "token.revoke", || delete(access::revoke_bootstrap_token)),
    route(("GET", "/v1/operator-tokens"), Who::Operator, "token.list", || get(access::list_operator_tokens)),
    route(("POST", "/v1/operator-tokens"), Who::Operator, "token.issue", || post(access::create_operator_token)),
    route(("DELETE", "/v1/operator-tokens/{token}"), Who::Operator, "token.revoke", || delete(access::revoke_operator_token)),
    route(("POST", "/v1/operator-tokens/{token}/rotate"), Who::Operator, "token.rotate", || post(access::rotate_operator_token)),
    route(("GET", "/v1/authz/relation-tuples"), Who::Operator, "grant.list", || get(access::list_tuples)),
    route(("POST", "/v1/authz/relation-tuples"), Who::Operator, "grant.create", || post(access::create_tuple)),
    route(("DELETE", "/v1/authz/relation-tuples/{tuple}"), Who::Operator, "grant.delete", || delete(access::delete_tuple)),
    route(("POST", "/v1/authz/check"), Who::Operator, "authz.check", || post(access::check)),
    route(("GET", "/v1/nodes"), Who::Operator, "node.list", || get(operator::list_nodes)),
    route(("GET", "/v1/nodes/{node}"), Who::Operator, "node.get", || get(operator::get_node)),
    route(("DELETE", "/v1/nodes/{node}"), Who::Operator, "node.decommission", || delete(operator::decommission_node)),
    route(("PATCH", "/v1/nodes/{node}/labels"), Who::Operator, "node.label", || patch(operator::patch_labels)),
    route(("GET", "/v1/integrity-violations"), Who::Operator, "violation.list", || get(operator::list_violations)),
    route(("POST", "/v1/labels/selectors/preview"), Who::Operator, "selector.preview", || post(operator::preview_selector)),
    route(("GET", "/v1/audit"), Who::Operator, "audit.list", || get(audit::list)),

    route(("POST", "/v1/nodes:enroll"), Who::Newcomer, "node.enroll", || post(node::enroll)),
    route(("GET", "/v1/nodes/{node}/events"), Who::Node, "node.events", || get(node::events)),
    route(("POST", "/v1/nodes/{node}/heartbeat"), Who::Node, "node.heartbeat", || post(node::heartbeat)),
    route(("PUT", "/v1/nodes/{node}/capabilities"), Who::Node, "node.capabilities", || put(node::capabilities)),
    route(("POST", "/v1/nodes/{node}/integrity-violations"), Who::Node, "node.violations", || post(node::violations)),
    route(("POST", "/v1/nodes/{node}/executions/{execution}"), Who::Node, "node_execution_callback.apply", || post(node::callback)),
    route(("PUT", "/v1/outputs/{execution}/{node}/output"), Who::Signed, "output.upload", || put(outputs::accept)),

    route(("GET", "/metrics"), Who::Here, "metrics", || get(metrics::show)),
    route(("GET", "/v1/version"), Who::Anybody, "version", || get(version)),
    route(("GET", "/v1/health"), Who::Anybody, "health", || get(health)),
    route(("GET", "/readyz"), Who::Anybody, "health", || get(ready)),
    route(("GET", "/healthz"), Who::Anybody, "health", || get(|| async { "ok\n" })),
];

pub(super) fn router() -> Router<Shared> {
    ROUTES.iter().fold(Router::new(), |router, route| {
        router.route(route.path, (route.serve)())
    })
}

/// What a refusal at this route is called in the audit trail.
pub(super) fn relation(method: &str, path: &str) -> &'static str {
    ROUTES
        .iter()
        .find(|route| route.path == path && route.method == method)
        .map_or("unknown", |route| route.relation)
}

/// The table as text: method, path and who may ask, separated by tabs.
pub(crate) fn listed() -> String {
    ROUTES
        .iter()
        .map(|route| format!("{}\t{}\t{}\n", route.method, route.path, route.who.as_str()))
        .collect()
}
