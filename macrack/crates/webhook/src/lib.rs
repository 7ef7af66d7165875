//! The admission webhook: refuses what the schema and the policies in `deploy/policies` cannot judge, because it
//! takes more than the object itself to see it.
//!
//! Invariants:
//! - **It fails closed and narrowly.** Facts that cannot be read refuse; a webhook that is down refuses creations
//!   and changes of MacRack's own kinds, and stops nothing else: no deletion, no status, no foreign kind ([`lint`]).
//! - **It is never the last line.** That a Mac carries two VMs is held by the slots of its MacNode.
//! - The certificate is renewed while it serves, without a restart ([`tls`]).
//!
//! ```text
//! API server ──TLS──▶ serve ─▶ routes ─▶ facts (reads of the API) ─▶ macrack_core::admit ─▶ verdict
//! ```
//!
//! | module | duty |
//! |---|---|
//! | [`serve`] | listens, and ends |
//! | [`routes`] | AdmissionReview in, AdmissionReview out |
//! | [`facts`] | what the rules ask for, read consistently |
//! | [`tls`] | the certificate that is shown, and its renewal |
//! | [`authority`] | the CA that two replicas share |
//! | [`install`] | the webhook configuration and the policies |
//! | [`lint`] | what a webhook configuration must not be |

pub mod authority;
pub mod facts;
pub mod install;
pub mod lint;
mod options;
mod routes;
mod serve;
pub mod tls;

pub use facts::{ApiFacts, Catalogue, FactSource};
pub use options::{Answered, Certificate, Error, Observer, Reach, WebhookOptions};
pub use serve::{Webhook, bind, serve};
