//! How a kind of object declares its conditions and the closed list of their reasons.

/// Declares the types of conditions, in the order in which an object passes them.
macro_rules! conditions {
    ($(#[doc = $about:literal])+ pub enum $kind:ident { $($(#[doc = $doc:literal])+ $name:ident,)+ }) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $kind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $kind {
            /// All conditions, in the order in which an object passes them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The meaning, in a sentence or two.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// The condition type in Kubernetes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// Finds this condition among the conditions of an object.
            pub fn find(
                self,
                conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
            ) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
                conditions.iter().find(|condition| condition.type_ == self.as_str())
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Declares the reasons once: variant, meaning, and the conditions that give it.
macro_rules! reasons {
    (
        $(#[doc = $about:literal])+
        pub enum $reason:ident of $kind:ident {
            $($(#[doc = $doc:literal])+ $name:ident of $($given:ident)|+,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $reason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $reason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The meaning, in a sentence or two.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($($doc),+).trim_ascii(),)+
                }
            }

            /// The reason in Kubernetes.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }

            /// The conditions that can have this reason.
            pub const fn conditions(self) -> &'static [$kind] {
                match self {
                    $(Self::$name => &[$($kind::$given,)+],)+
                }
            }
        }

        impl $kind {
            /// A condition with this reason and `status`.
            pub fn is(
                self,
                status: bool,
                reason: $reason,
                message: impl Into<String>,
                generation: i64,
                since: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time,
            ) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
                k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
                    last_transition_time: since,
                    message: message.into(),
                    observed_generation: Some(generation),
                    reason: reason.as_str().to_owned(),
                    status: if status { "True" } else { "False" }.to_owned(),
                    type_: self.as_str().to_owned(),
                }
            }
        }

        impl std::fmt::Display for $reason {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $reason {
            type Err = $crate::vocabulary::UnknownReason;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().find(|reason| reason.as_str() == text);
                found.copied().ok_or_else(|| $crate::vocabulary::UnknownReason(text.to_owned()))
            }
        }
    };
}

pub(crate) use {conditions, reasons};

/// The text is not one of the reasons.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the reason of a condition")]
pub struct UnknownReason(pub String);
