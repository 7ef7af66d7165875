//! What was seen. Absent is not unreadable: a failed read frees nothing and deletes nothing.

/// The result of looking for something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen<T> {
    /// It is there.
    Present(T),
    /// It was looked for, and is not there.
    Absent,
    /// It could not be looked for; the text says why. Nothing may be decided from it.
    Unknown(String),
}

impl<T> Seen<T> {
    /// What is there, if it was seen.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(value) => Some(value),
            Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// Whether it was looked for and is not there.
    pub fn absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Why it could not be looked for.
    pub fn unreadable(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Present(_) | Self::Absent => None,
        }
    }

    /// The same look, at a part of it.
    pub fn map<U>(self, part: impl FnOnce(T) -> U) -> Seen<U> {
        match self {
            Self::Present(value) => Seen::Present(part(value)),
            Self::Absent => Seen::Absent,
            Self::Unknown(why) => Seen::Unknown(why),
        }
    }

    /// The same look, without taking it.
    pub fn as_ref(&self) -> Seen<&T> {
        match self {
            Self::Present(value) => Seen::Present(value),
            Self::Absent => Seen::Absent,
            Self::Unknown(why) => Seen::Unknown(why.clone()),
        }
    }
}

impl<T> From<Option<T>> for Seen<T> {
    /// Of a look that succeeded.
    fn from(found: Option<T>) -> Self {
        found.map_or(Self::Absent, Self::Present)
    }
}
