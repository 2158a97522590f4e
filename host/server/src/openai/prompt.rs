//! Prompts as `/v1/completions` takes them.

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use std::fmt;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

/// A text, or token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RawPrompt {
    /// To be encoded; control tokens in it are recognised.
    Text(String),
    /// Ready.
    Ids(Vec<u32>),
}

/// A string, a list of strings, a list of ids, or a list of lists of ids. The empty list is [`Self::Empty`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptField {
    /// `[]`, which validation refuses.
    Empty,
    /// One prompt.
    One(RawPrompt),
    /// Several, of one kind.
    Many(Vec<RawPrompt>),
}

const EXPECTED: &str =
    "a string, a list of strings, a list of token ids, or a list of lists of token ids";

/// The first element of a list decides what the others must be. Ids go straight into four bytes each.
enum Element {
    Id(u32),
    Text(String),
    Ids(Vec<u32>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ElementVisitor;
        impl<'de> Visitor<'de> for ElementVisitor {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a token id (0 or more), or a list of token ids")
            }
            fn visit_u64<E: Error>(self, id: u64) -> Result<Element, E> {
                u32::try_from(id)
                    .map(Element::Id)
                    .map_err(|_| E::custom(format!("token id {id} is not in the vocabulary")))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
                Ok(Element::Text(text.to_owned()))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<Element, E> {
                Ok(Element::Text(text))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut ids = Vec::new();
                while let Some(id) = seq.next_element::<u32>()? {
                    ids.push(id);
                }
                Ok(Element::Ids(ids))
            }
        }
        deserializer.deserialize_any(ElementVisitor)
    }
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PromptVisitor;
        impl<'de> Visitor<'de> for PromptVisitor {
            type Value = PromptField;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<PromptField, E> {
                Ok(PromptField::One(RawPrompt::Text(text.to_owned())))
            }
            fn visit_string<E: Error>(self, text: String) -> Result<PromptField, E> {
                Ok(PromptField::One(RawPrompt::Text(text)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<PromptField, A::Error> {
                let mixed = || {
                    A::Error::custom(format!("elements of different kinds, expected {EXPECTED}"))
                };
                match seq.next_element::<Element>()? {
                    None => Ok(PromptField::Empty),
                    Some(Element::Id(first)) => {
                        let mut ids = vec![first];
                        while let Some(id) = seq.next_element::<u32>()? {
                            ids.push(id);
                        }
                        Ok(PromptField::One(RawPrompt::Ids(ids)))
                    }
                    Some(Element::Text(first)) => {
                        let mut prompts = vec![RawPrompt::Text(first)];
                        while let Some(element) = seq.next_element::<Element>()? {
                            let Element::Text(text) = element else {
                                return Err(mixed());
                            };
                            prompts.push(RawPrompt::Text(text));
                        }
                        Ok(PromptField::Many(prompts))
                    }
                    Some(Element::Ids(first)) => {
                        let mut prompts = vec![RawPrompt::Ids(first)];
                        while let Some(element) = seq.next_element::<Element>()? {
                            let Element::Ids(ids) = element else {
                                return Err(mixed());
                            };
                            prompts.push(RawPrompt::Ids(ids));
                        }
                        Ok(PromptField::Many(prompts))
                    }
                }
            }
        }
        deserializer.deserialize_any(PromptVisitor)
    }
}

impl PartialSchema for PromptField {
    fn schema() -> RefOr<Schema> {
        let string = || Schema::from(ObjectBuilder::new().schema_type(Type::String));
        let ids = || {
            let id = Schema::from(ObjectBuilder::new().schema_type(Type::Integer));
            Schema::from(ArrayBuilder::new().items(RefOr::T(id)))
        };
        OneOfBuilder::new()
            .description(Some("Text, token ids, or a list of either. A control token's literal in the text is that token."))
            .item(string())
            .item(Schema::from(ArrayBuilder::new().items(RefOr::T(string()))))
            .item(ids())
            .item(Schema::from(ArrayBuilder::new().items(RefOr::T(ids()))))
            .into()
    }
}

impl ToSchema for PromptField {}
