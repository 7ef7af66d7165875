//! `config.dockerios.io`: how the platform behaves.

pub mod platform_config;
