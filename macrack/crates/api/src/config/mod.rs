//! `config.macrack.io`: one optional singleton. Nothing in it can weaken the three rules.
pub mod rack_config;
