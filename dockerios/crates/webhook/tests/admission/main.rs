//! Every rule on the real API server: schema and CEL of the generated definitions, the policies of `deploy/policies`,
//! the roles of `deploy/rbac`, and the webhook over TLS, which reads its facts with the operator's own rights. Each
//! refusal is demanded with its reason, and its nearest admissible neighbour is admitted.

mod attempts;
mod cluster;
mod grace;
mod ownership;
mod roles;
mod rules;
mod samples;
mod schema;
mod warnings;
