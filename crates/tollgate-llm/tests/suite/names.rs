//! Names as vendors write them. The listed name is the longest that fits.

use proptest::prelude::*;
use tollgate_llm::{Model, Models, Price};

/// Each listed model has its own price.
fn price_of(listed: &[&str], name: &str) -> Option<usize> {
    let price = |number: usize| Model::new(Price::per_million(number as u64, 0));
    let models = Models::new(price(listed.len()));
    let numbered = listed.iter().enumerate();
    let models = numbered.fold(models, |all, (number, name)| all.with(*name, price(number)));
    (0..listed.len()).find(|number| models.get(name) == &price(*number))
}

#[test]
fn versions_have_the_price_of_their_model() {
    for (listed, name) in [
        // OpenAI.
        ("gpt-5", "gpt-5"),
        ("gpt-5", "gpt-5-2025-08-07"),
        ("gpt-5-mini", "gpt-5-mini-2025-08-07"),
        ("gpt-5-chat", "gpt-5-chat-latest"),
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("gpt-4.1-nano", "gpt-4.1-nano-2025-04-14"),
        ("gpt-4", "gpt-4-0613"),
        ("gpt-4", "gpt-4-1106-preview"),
        ("gpt-4-turbo", "gpt-4-turbo-2024-04-09"),
        ("gpt-3.5-turbo", "gpt-3.5-turbo-0125"),
        ("o1", "o1-preview-2024-09-12"),
        ("o3-mini", "o3-mini-2025-01-31"),
        ("chatgpt-4o", "chatgpt-4o-latest"),
        ("text-embedding-ada", "text-embedding-ada-002"),
        // Anthropic, on its own servers, Vertex and Bedrock.
        ("claude-sonnet-4-5", "claude-sonnet-4-5-20250929"),
        ("claude-opus-4-1", "claude-opus-4-1-20250805"),
        ("claude-3-5-sonnet", "claude-3-5-sonnet-latest"),
        ("claude-3-7-sonnet", "claude-3-7-sonnet@20250219"),
        ("claude-opus-4", "claude-opus-4@default"),
        ("claude-3-5-sonnet", "anthropic.claude-3-5-sonnet-20241022-v2:0"),
        ("claude-sonnet-4", "us.anthropic.claude-sonnet-4-20250514-v1:0"),
        ("claude-3-haiku", "anthropic.claude-3-haiku-20240307-v1:0:200k"),
        (
            "claude-3-5-sonnet",
            "arn:aws:bedrock:eu-west-1::foundation-model/anthropic.claude-3-5-sonnet-20240620-v1:0",
        ),
        ("anthropic.claude-3-haiku", "anthropic.claude-3-haiku-20240307-v1:0"),
        ("nova-pro", "us.amazon.nova-pro-v1:0"),
        ("jamba-1-5-mini", "ai21.jamba-1-5-mini-v1:0"),
        ("mistral-large", "mistral.mistral-large-2402-v1:0"),
        // Google.
        ("gemini-2.5-pro", "models/gemini-2.5-pro-preview-05-06"),
        ("gemini-2.5-pro", "gemini-2.5-pro-exp-03-25"),
        ("gemini-2.5-flash-lite", "gemini-2.5-flash-lite-preview-09-2025"),
        ("gemini-2.0-flash", "gemini-2.0-flash-001"),
        ("gemini-1.5-pro", "publishers/google/models/gemini-1.5-pro-002"),
        ("textembedding-gecko", "textembedding-gecko@003"),
        // Other vendors.
        ("mistral-large", "mistral-large-2411"),
        ("codestral", "codestral-latest"),
        ("open-mistral-nemo", "open-mistral-nemo-2407"),
        ("command-r-plus", "command-r-plus-04-2024"),
        ("grok-4", "grok-4-0709"),
        ("kimi-k2", "kimi-k2-0905-preview"),
        ("deepseek-r1", "deepseek/deepseek-r1-0528:free"),
        ("deepseek-chat-v3", "deepseek/deepseek-chat-v3-0324"),
        ("qwen-max", "qwen-max-2025-01-25"),
        ("doubao-1-5-pro-32k", "doubao-1-5-pro-32k-250115"),
        ("llama3", "llama3:latest"),
        ("Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-v3p1-70b-instruct", "accounts/fireworks/models/llama-v3p1-70b-instruct"),
        ("claude-sonnet-4.5", "openrouter/anthropic/claude-sonnet-4.5"),
    ] {
        assert_eq!(price_of(&[listed], name), Some(0), "{listed} {name}");
    }
}

/// A client that chooses the name must not choose the price of another model.
#[test]
fn other_models_have_the_default() {
    for (listed, name) in [
        ("gpt-4", "gpt-4o"),
        ("gpt-4", "gpt-4.1"),
        ("gpt-4", "gpt-4-32k-0613"),
        ("gpt-4", "gpt-4-turbo-2024-04-09"),
        ("gpt-4", "gpt-4-vision-preview"),
        ("gpt-4o", "gpt-4o-mini-2024-07-18"),
        ("gpt-4o", "gpt-4o-audio-preview-2024-12-17"),
        ("gpt-4o", "ft:gpt-4o-2024-08-06:acme::9aB"),
        ("gpt-4o", "GPT-4o"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"),
        ("gpt-4o-2024-05-13", "gpt-4o"),
        ("gpt", "gpt-5-2025-08-07"),
        ("gpt-image", "gpt-image-1"),
        ("o1", "o1-pro-2025-03-19"),
        ("claude-sonnet", "claude-sonnet-4-5-20250929"),
        ("claude-sonnet-4", "claude-sonnet-4-5-20250929"),
        ("claude-3-5-sonnet", "claude-3-5-haiku-20241022"),
        ("titan-embed-text", "amazon.titan-embed-text-v1"),
        ("gemini-2.5-pro", "gemini-2.5-flash-preview-05-20"),
        ("gemini-2.5-flash", "gemini-2.5-flash-preview-tts"),
        ("gemini", "gemini-2.5"),
        ("llama", "llama-3"),
        ("llama", "llama-3.1"),
        ("llama", "llama-13"),
        ("llama3", "llama3:8b"),
        ("llama3", "llama3-70b-8192"),
        ("llama3-70b", "llama3-70b-8192"),
        ("mixtral-8x7b", "mixtral-8x7b-32768"),
        ("falcon", "falcon-180"),
        ("deepseek-chat", "deepseek-chat-v3"),
        ("deepseek-r1", "deepseek-r1:online"),
        ("glm-4", "glm-4-32b-0414"),
        ("model", "model-2024-13-06"),
        ("model", "model-2024-08-32"),
        ("model", "model-05-06"),
        ("model", "model-1999-01-01"),
        ("model", "model-20241301"),
        ("model", "model-0013"),
        ("model", "model-2413"),
        ("model", "model-123"),
        ("model", "model-131072"),
        ("model", "model-v2"),
        ("1", "gpt-4.1"),
        ("", "2024-08-06"),
        ("", "-latest"),
        ("model", ""),
        ("model", "model-é1"),
        ("model", "model-２０２４"),
    ] {
        assert_eq!(price_of(&[listed], name), None, "{listed} {name}");
    }
}

#[test]
fn exact_name_comes_first() {
    let listed = ["gpt-4o-2024-05-13", "gpt-4o", "azure/gpt-4o", "gpt-4o-preview"];
    for (name, expected) in [
        ("gpt-4o-2024-05-13", 0),
        ("openai/gpt-4o-2024-05-13", 0),
        ("gpt-4o-2024-08-06", 1),
        ("openai/gpt-4o", 1),
        ("azure/gpt-4o", 2),
        ("azure/gpt-4o-2024-05-13", 2),
        ("gpt-4o-preview-2024-12-17", 3),
        ("gpt-4o-preview", 3),
    ] {
        assert_eq!(price_of(&listed, name), Some(expected), "{name}");
    }
}

proptest! {
    #[test]
    fn dates_and_vendors_combine(
        vendor in prop::sample::select(vec!["", "openai/", "a/b/", "eu.vendor.", "bedrock/us.vendor."]),
        (year, month, day) in (20_u32..40, 1_u32..13, 1_u32..32),
        form in 0_usize..7,
        word in prop::sample::select(vec!["", "-latest", "-preview", "-v1:0", ":free"]),
    ) {
        let date = [
            format!("-20{year}-{month:02}-{day:02}"),
            format!("@20{year}{month:02}{day:02}"),
            format!("-{year}{month:02}{day:02}"),
            format!("-{month:02}{day:02}"),
            format!("-{year}{month:02}"),
            format!("-{month:02}-20{year}"),
            format!("-preview-{month:02}-{day:02}"),
        ];
        let name = format!("{vendor}model-7b{}{word}", date[form]);
        prop_assert_eq!(price_of(&["model", "model-7b"], &name), Some(1), "{}", name);
    }

    #[test]
    fn no_name_is_an_error(name in r"([a-z]{0,2}|[0-9]{1,8}|é|[-@:./]|-v){0,9}") {
        // A name of only separators and dates has no model.
        prop_assert_eq!(price_of(&["listed"], &name), None, "{}", name);
    }
}
