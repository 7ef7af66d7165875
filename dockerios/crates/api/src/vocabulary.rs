//! Condition types and reasons, each documented where it is defined. `docs/conditions.md` is rendered from them.

/// A word of the API with its meaning and the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As it stands in `type` or `reason`.
    pub word: &'static str,
    /// From the doc comment.
    pub meaning: &'static str,
}

/// An enum whose variants are API words and whose doc comments are their meanings.
macro_rules! vocabulary {
    ($(#[$about:meta])* $name:ident: $($(#[doc = $meaning:literal])+ $word:ident;)+) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $meaning])+ $word),+ }

        impl $name {
            /// The whole vocabulary, in order of definition.
            pub const ENTRIES: &'static [$crate::Entry] =
                &[$($crate::Entry { word: stringify!($word), meaning: concat!($($meaning),+) }),+];

            /// The word itself.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$word => stringify!($word)),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.word()) }
        }
    };
}
pub(crate) use vocabulary;
