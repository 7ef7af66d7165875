//! The webhook's rules as tables: what breaks each, the nearest thing that does not, and what happens when a fact cannot
//! be seen. The same rules are asked through a real API server in the webhook's own tests.

mod cases;
mod class;
mod identity;
mod tenant;
mod things;
