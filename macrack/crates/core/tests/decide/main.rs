//! Decision tables: what each chassis, lease and instance does in each situation, step by step and in words.

mod binding;
mod holding;
mod rack;
