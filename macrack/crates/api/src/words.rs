//! Words with meaning: reasons and condition types, documented where they are defined.
//! `docs/conditions.md` is rendered from these doc comments by `cargo xtask generate`.

/// One documented word: what stands in `reason` or `type`, and what it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// As it appears in the API.
    pub word: &'static str,
    /// Its meaning and the way out, from the doc comment.
    pub meaning: &'static str,
}

/// Defines an enum of API words; the variant's name is the word, its doc comment the meaning.
macro_rules! words {
    ($(#[$outer:meta])* $name:ident { $($(#[doc = $doc:literal])+ $variant:ident,)+ }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $doc])+ $variant,)+ }
        impl $name {
            /// Every word with its meaning, in the order of definition.
            pub const ALL: &'static [$crate::Word] = &[$($crate::Word {
                word: stringify!($variant),
                meaning: concat!($($doc),+),
            },)+];
            /// The word as it appears in the API.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)+ }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
        impl From<$name> for String {
            fn from(word: $name) -> String { word.as_str().to_owned() }
        }
    };
}
pub(crate) use words;
