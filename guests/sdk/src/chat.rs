//! Conversations: what a chat guest is written with.
//!
//! A [`Template`] turns a conversation into segments and makes a [`Parser`] for each choice of the answer;
//! [`export_chat!`](crate::export_chat) makes it the component's export. [`messages`] reads the request's messages,
//! [`Controls`] finds control tokens by their literals, [`Prompt`] collects segments.
//!
//! ```
//! use guesthouse_sdk::chat::{ControlToken, Conversation, Delta, File, Parser, Segment, Template};
//! use guesthouse_sdk::Error;
//!
//! /// `<s>` and the messages as they came.
//! struct Plain {
//!     begin: Option<u32>,
//! }
//!
//! struct AllContent;
//!
//! impl Template for Plain {
//!     type Parser = AllContent;
//!
//!     fn create(_: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error> {
//!         Ok(Self { begin: controls.iter().find(|c| c.literal == "<s>").map(|c| c.id) })
//!     }
//!
//!     fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error> {
//!         let begin = self.begin.map(Segment::Special);
//!         Ok(begin.into_iter().chain([Segment::Text(conversation.messages)]).collect())
//!     }
//!
//!     fn parser(&self, _: Conversation) -> Result<AllContent, Error> {
//!         Ok(AllContent)
//!     }
//! }
//!
//! impl Parser for AllContent {
//!     fn push(&mut self, text: &str) -> Vec<Delta> {
//!         vec![Delta::Content(text.into())]
//!     }
//!
//!     fn finish(&mut self) -> Vec<Delta> {
//!         vec![]
//!     }
//! }
//!
//! guesthouse_sdk::export_chat!(Plain);
//! ```

mod prompt;
pub mod testing;

pub use prompt::{
    Controls, Message, Plain, Prompt, Role, Trimmed, config, messages, without_tools,
};

use crate::Error;

/// Generated from `wit/chat`.
#[allow(missing_docs, clippy::all)]
pub mod bindings {
    wit_bindgen::generate!({
        path: ["wit/common", "wit/chat"],
        world: "guesthouse:chat/matching-chat-guest",
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "guesthouse_sdk::chat::bindings",
        export_macro_name: "export_chat_world",
        additional_derives: [PartialEq],
    });
}

pub use bindings::exports::guesthouse::chat::parsing::{Delta, ToolCallDelta};
pub use bindings::exports::guesthouse::chat::template::{
    ControlToken, Conversation, File, Segment,
};

crate::error::into_wit_error!(bindings::guesthouse::common::types::Error);

/// A conversation's rules, made from a model's files.
pub trait Template: Sized + 'static {
    /// `architectures` names of config.json whose models get this guest when they ship no chat template. None: it is chosen
    /// by name alone.
    const ARCHITECTURES: &'static [&'static str] = &[];

    /// What takes answers apart.
    type Parser: Parser;

    /// From the model's files and all control tokens of its tokenizer.
    fn create(files: Vec<File>, controls: Vec<ControlToken>) -> Result<Self, Error>;

    /// The prompt. Only a [`Segment::Special`] is a control token, whatever texts contain.
    fn render(&self, conversation: Conversation) -> Result<Vec<Segment>, Error>;

    /// Strings that end a generation, beside the model's own end tokens.
    fn stop_strings(&self) -> Vec<String> {
        vec![]
    }

    /// Control tokens that parsers need to see, as their literals in the text; all others are left out of it.
    fn visible_controls(&self) -> Vec<u32> {
        vec![]
    }

    /// A parser for one choice of an answer to `conversation`.
    fn parser(&self, conversation: Conversation) -> Result<Self::Parser, Error>;
}

/// State of one choice. What its deltas add up to must not depend on how the text was cut.
pub trait Parser: 'static {
    /// More text, in whole code points.
    fn push(&mut self, text: &str) -> Vec<Delta>;

    /// The text is over.
    fn finish(&mut self) -> Vec<Delta>;
}

/// Makes a [`Template`] this component's export. Once per crate.
#[macro_export]
macro_rules! export_chat {
    ($template:ty) => {
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseGuest;
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseTemplate($template);
        #[doc(hidden)]
        #[allow(dead_code)]
        struct __GuesthouseParser(
            ::std::cell::RefCell<<$template as $crate::chat::Template>::Parser>,
        );

        const _: () = {
            use $crate::chat::bindings::exports::guesthouse::chat::{
                matching as __matching, parsing as __parsing, template as __template,
            };
            use $crate::chat::bindings::guesthouse::common::{log as __log, types as __types};
            use $crate::chat::{Parser as _, Template as _};

            impl __matching::Guest for __GuesthouseGuest {
                fn architectures() -> ::std::vec::Vec<::std::string::String> {
                    let names = <$template as $crate::chat::Template>::ARCHITECTURES;
                    names.iter().map(|name| (*name).into()).collect()
                }
            }

            impl __parsing::Guest for __GuesthouseGuest {
                type Parser = __GuesthouseParser;
            }

            impl __parsing::GuestParser for __GuesthouseParser {
                fn push(&self, text: ::std::string::String) -> ::std::vec::Vec<__parsing::Delta> {
                    self.0.borrow_mut().push(&text)
                }

                fn finish(&self) -> ::std::vec::Vec<__parsing::Delta> {
                    self.0.borrow_mut().finish()
                }
            }

            impl __template::Guest for __GuesthouseGuest {
                type Template = __GuesthouseTemplate;
            }

            impl __template::GuestTemplate for __GuesthouseTemplate {
                fn create(
                    files: ::std::vec::Vec<__template::File>,
                    controls: ::std::vec::Vec<__template::ControlToken>,
                ) -> ::std::result::Result<__template::Template, __types::Error> {
                    $crate::log_panics(|m| __log::log(__log::Level::Error, m));
                    let template = <$template>::create(files, controls)?;
                    ::std::result::Result::Ok(__template::Template::new(__GuesthouseTemplate(
                        template,
                    )))
                }

                fn render(
                    &self,
                    conversation: __template::Conversation,
                ) -> ::std::result::Result<::std::vec::Vec<__template::Segment>, __types::Error>
                {
                    ::std::result::Result::Ok(self.0.render(conversation)?)
                }

                fn stop_strings(&self) -> ::std::vec::Vec<::std::string::String> {
                    self.0.stop_strings()
                }

                fn visible_controls(&self) -> ::std::vec::Vec<u32> {
                    self.0.visible_controls()
                }

                fn parser(
                    &self,
                    conversation: __template::Conversation,
                ) -> ::std::result::Result<__parsing::Parser, __types::Error> {
                    let parser = ::std::cell::RefCell::new(self.0.parser(conversation)?);
                    ::std::result::Result::Ok(__parsing::Parser::new(__GuesthouseParser(parser)))
                }
            }
        };

        // Native builds, which are for tests, cannot link names with a colon.
        #[cfg(target_arch = "wasm32")]
        $crate::chat::bindings::export_chat_world!(
            __GuesthouseGuest with_types_in $crate::chat::bindings
        );
    };
}
