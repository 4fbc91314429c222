#include "sim/engines/vllm/speculation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>

#include "models/catalog.hpp"
#include "models/config_reader.hpp"

namespace oomcast::vllm {
namespace {

using Method = SpecDecode::Method;

constexpr std::int64_t kMostDrafts = 64;
// Tokens that the heads of published EAGLE-3 drafts know.
constexpr std::int64_t kEagle3Vocabulary = 32'000;

struct Asked {
  std::string method;
  std::string model;
  std::optional<std::int64_t> tokens;
};

class Reader {
 public:
  Reader(const launch::Launch& launch, const models::ModelSpec& target,
         std::vector<std::string>& assumptions, Problems& problems)
      : launch_(launch), target_(target), assumptions_(assumptions), problems_(problems) {}

  std::optional<Speculation> read() {
    const std::optional<Asked> asked = ask();
    if (!asked) {
      return std::nullopt;
    }
    Speculation out;
    out.name = method_of(*asked);
    settle_tokens(*asked, out);
    check_draft_ranks(out);
    if (out.name == "ngram" || out.name == "ngram_gpu" || out.name == "suffix") {
      out.method = Method::kNgram;
      check_lookup();
    } else if (out.name == "mtp") {
      out.method = Method::kEagle;
      out.own_layers = true;
      if (target_.draft_layers.empty()) {
        complain(
            "method", out.name, "a model with MTP layers",
            "its configuration names none (num_nextn_predict_layers, mtp_num_hidden_layers), or "
            "those of its family are not modelled yet");
      }
    } else if (out.name == "draft_model") {
      out.method = Method::kDraftModel;
      out.draft = known_draft(asked->model, true);
    } else if (out.name == "eagle" || out.name == "eagle3") {
      out.method = Method::kEagle;
      if (asked->model.empty()) {
        complain("model", "nothing", "the draft's name, or a folder with its config.json", "");
      }
      set_eagle(asked->model, out);
    } else {
      complain("method", out.name, "mtp, eagle, eagle3, draft_model, ngram, ngram_gpu or suffix",
               "other drafts are not modelled yet");
    }
    return out;
  }

 private:
  void complain(const std::string& key, const std::string& value, const std::string& expected,
                const std::string& hint) {
    problems_.add({"launch line", "--speculative-config." + key, value, expected, hint});
  }

  std::optional<Asked> ask() {
    Asked asked;
    asked.method = launch_.text("spec-method").value_or("");
    asked.model = launch_.text("spec-model").value_or("");
    asked.tokens = launch_.integer("spec-tokens");
    const auto text = [&](const char* key, std::string& into) {
      if (const Json* value = launch_.json("speculative-config", key); value != nullptr) {
        if (value->is_string()) {
          into = value->get<std::string>();
        } else if (!value->is_null()) {
          complain(key, value->dump(), "a text", "");
        }
      }
    };
    text("method", asked.method);
    text("model", asked.model);
    if (const Json* value = launch_.json("speculative-config", "num_speculative_tokens")) {
      if (value->is_number_integer()) {
        asked.tokens = value->get<std::int64_t>();
      } else {
        complain("num_speculative_tokens", value->dump(), "an integer", "");
      }
    }
    const auto alone = [&](const char* flag, const char* key) {
      if (launch_.json("speculative-config", key) != nullptr && launch_.given(flag)) {
        problems_.add({"launch line", fmt::format("--{}", flag), "",
                       fmt::format("either this flag or the key {} of --speculative-config", key),
                       ""});
      }
    };
    alone("spec-method", "method");
    alone("spec-model", "model");
    alone("spec-tokens", "num_speculative_tokens");
    const bool any = !asked.method.empty() || !asked.model.empty() || asked.tokens;
    return any ? std::optional(asked) : std::nullopt;
  }

  // The engine's own order: what is named, else by the draft's name.
  static std::string method_of(const Asked& asked) {
    const std::string& method = asked.method;
    if (method.size() > 3 && method.ends_with("mtp")) {
      return "mtp";  // deepseek_mtp, qwen3_next_mtp …: the older names
    }
    if (!method.empty()) {
      return method;
    }
    std::string model = asked.model;
    std::transform(model.begin(), model.end(), model.begin(),
                   [](char letter) { return static_cast<char>(std::tolower(letter)); });
    if (model == "ngram" || model == "[ngram]") {
      return "ngram";
    }
    if (model.find("eagle3") != std::string::npos || model.find("eagle-3") != std::string::npos) {
      return "eagle3";
    }
    return model.find("eagle") != std::string::npos ? "eagle" : "draft_model";
  }

  void settle_tokens(const Asked& asked, Speculation& out) {
    if (!asked.tokens && out.name == "mtp" && !target_.draft_layers.empty()) {
      out.tokens = static_cast<std::int64_t>(target_.draft_layers.size());
      return;
    }
    if (!asked.tokens || *asked.tokens < 1 || *asked.tokens > kMostDrafts) {
      complain("num_speculative_tokens", asked.tokens ? std::to_string(*asked.tokens) : "nothing",
               fmt::format("1 to {}", kMostDrafts), "");
    }
    out.tokens = asked.tokens.value_or(1);
  }

  // Of a key of the configuration; nothing if it is absent or, with a complaint, no integer.
  std::optional<std::int64_t> number(const char* key) {
    const Json* value = launch_.json("speculative-config", key);
    if (value == nullptr) {
      return std::nullopt;
    }
    if (!value->is_number_integer() || *value < 1) {
      complain(key, value->dump(), "an integer, at least 1", "");
      return std::nullopt;
    }
    return value->get<std::int64_t>();
  }

  // vllm/config/speculative.py allows one rank or the target's; whole models as drafts run on the
  // target's alone (v1/spec_decode/draft_model.py).
  void check_draft_ranks(const Speculation& out) {
    constexpr const char* kKey = "draft_tensor_parallel_size";
    const std::optional<std::int64_t> ranks = number(kKey);
    const std::int64_t target = launch_.integer("tensor-parallel-size").value_or(1);
    const bool whole = out.name == "draft_model";
    if (ranks && *ranks != target && (whole || *ranks != 1)) {
      complain(kKey, std::to_string(*ranks),
               whole || target == 1 ? fmt::format("{}, the tensor-parallel-size", target)
                                    : fmt::format("1 or {}, the tensor-parallel-size", target),
               "");
    }
  }

  void check_lookup() {
    const std::optional<std::int64_t> least = number("prompt_lookup_min");
    const std::optional<std::int64_t> most = number("prompt_lookup_max");
    if (least && most && *least > *most) {
      complain("prompt_lookup_min", std::to_string(*least),
               fmt::format("at most prompt_lookup_max, {}", *most), "");
    }
  }

  // From a folder or file, or the catalog; null if neither has it.
  std::shared_ptr<const models::ModelSpec> known_draft(const std::string& model, bool needed) {
    try {
      const std::filesystem::path path(model);
      std::error_code ignored;
      if (std::filesystem::is_regular_file(path / "config.json", ignored)) {
        return std::make_shared<const models::ModelSpec>(
            models::read_model_config((path / "config.json").string()));
      }
      return std::make_shared<const models::ModelSpec>(models::catalog_model(model));
    } catch (const ConfigError& error) {
      if (needed) {
        complain("model", model.empty() ? "nothing" : model,
                 "a model of the catalog, or a folder with the draft's config.json", error.what());
      }
      return nullptr;
    }
  }

  void set_eagle(const std::string& model, Speculation& out) {
    const bool third = out.name == "eagle3";
    out.shares_embedding = true;
    out.shares_head = !third;
    out.joined_hidden = third ? 3 : 2;
    out.draft = known_draft(model, false);
    if (out.draft) {
      return;
    }
    const auto usual =
        std::find_if(target_.layer_kinds.begin(), target_.layer_kinds.end(), [](const auto& layer) {
          return layer.attention.kind == models::AttentionKind::kFull && layer.attention.heads > 0;
        });
    constexpr std::int64_t kHead = 128;
    const bool like_target = usual != target_.layer_kinds.end();
    const std::int64_t hidden = target_.hidden;
    const std::int64_t heads = like_target ? usual->attention.heads : hidden / kHead;
    const std::int64_t kv_heads = like_target
                                      ? usual->attention.kv_heads
                                      : std::gcd(heads, std::max<std::int64_t>(1, heads / 4));
    const bool dense = like_target && usual->ffn.width > 0;
    const std::int64_t width = dense ? usual->ffn.width : 7 * hidden / 2;
    const Json config = {
        {"architectures", Json::array({"LlamaForCausalLM"})},
        {"model_type", "llama"},
        {"torch_dtype", "bfloat16"},
        {"hidden_size", hidden},
        {"intermediate_size", width},
        {"num_hidden_layers", 1},
        {"num_attention_heads", heads},
        {"num_key_value_heads", kv_heads},
        {"head_dim", like_target ? usual->attention.head_dim : kHead},
        {"vocab_size", third ? kEagle3Vocabulary : target_.vocabulary},
        {"max_position_embeddings", 2048},
        {"rope_theta", 10000.0},
        {"tie_word_embeddings", false},
    };
    out.draft = std::make_shared<const models::ModelSpec>(
        models::read_model_config(config, "the assumed draft"));
    assumptions_.push_back(fmt::format(
        "speculative-config.model {}: its configuration is not known; one decoder layer of hidden "
        "size {}, {} heads, {} KV heads and width {}{} is assumed",
        model.empty() ? "(not named)" : model, hidden, heads, kv_heads, width,
        third ? fmt::format(", with a head of {} tokens", kEagle3Vocabulary) : ""));
  }

  const launch::Launch& launch_;
  const models::ModelSpec& target_;
  std::vector<std::string>& assumptions_;
  Problems& problems_;
};

}  // namespace

std::optional<Speculation> read_speculation(const launch::Launch& launch,
                                            const models::ModelSpec& target,
                                            std::vector<std::string>& assumptions,
                                            Problems& problems) {
  return Reader(launch, target, assumptions, problems).read();
}

models::RankWeights draft_weights(const Speculation& speculation, const models::ShardPlan& plan) {
  models::ShardPlan own;
  own.tp = plan.tp;
  own.compute_major = plan.compute_major;
  own.dtype = plan.dtype;
  models::RankWeights out = models::weights_on_rank(*speculation.draft, own);
  std::erase_if(out.tensors, [&](const models::TensorBytes& tensor) {
    const bool embedding = tensor.name.find("embed_tokens") != std::string_view::npos;
    const bool head = tensor.name.find("lm_head") != std::string_view::npos;
    return (embedding && speculation.shares_embedding) || (head && speculation.shares_head);
  });
  if (speculation.joined_hidden > 0) {
    // fc: joined hidden states to one; EAGLE-3's projection then takes embedding and hidden state.
    const std::int64_t hidden = speculation.draft->hidden;
    const models::DType dtype = own.dtype.value_or(speculation.draft->dtype);
    const auto matrix = [&](std::string_view name, std::int64_t rows, std::int64_t columns) {
      const std::int64_t elements = (Bytes{rows} * columns).count();
      out.tensors.push_back(
          {.name = name, .layer = 0, .dtype = dtype, .bytes = models::bytes_of(dtype, elements)});
    };
    matrix("fc.weight", hidden, speculation.joined_hidden * hidden);
    if (speculation.name == "eagle3") {
      const models::AttentionSpec& attention = speculation.draft->layer(0).attention;
      const std::int64_t heads = div_ceil(attention.heads, own.tp) +
                                 2 * std::max<std::int64_t>(1, attention.kv_heads / own.tp);
      matrix("self_attn.qkv_proj.weight of the embedding", heads * attention.head_dim, hidden);
      matrix("hidden_norm.weight", 1, hidden);
    }
  }
  return out;
}

SpecDecode scheduler_speculation(const Speculation& speculation, double acceptance) {
  SpecDecode out;
  out.method = speculation.method;
  out.num_speculative_tokens = speculation.tokens;
  // The sequence of van der Corput fills [0, 1) evenly.
  constexpr std::uint32_t kLength = 64;
  for (std::uint32_t i = 0; i < kLength; ++i) {
    double point = 0;
    double place = 0.5;
    for (std::uint32_t bits = i; bits != 0; bits >>= 1U, place /= 2) {
      point += (bits & 1U) != 0 ? place : 0;
    }
    std::int32_t accepted = 0;
    double least = acceptance;  // probability of more than `accepted`
    while (accepted < speculation.tokens && point < least) {
      ++accepted;
      least *= acceptance;
    }
    out.accept.push_back(accepted);
  }
  return out;
}

}  // namespace oomcast::vllm
