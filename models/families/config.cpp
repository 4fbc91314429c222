// Typed access to the keys of a config.json.
#include "models/families/family.hpp"

namespace oomcast::models {
namespace {

std::string joined(Keys keys) {
  std::string out;
  for (const std::string_view key : keys) {
    out += (out.empty() ? "" : " or ") + std::string(key);
  }
  return out;
}

}  // namespace

Config::Config(const Json& whole, const Json& text, std::string source, std::string text_path,
               ModelSpec& spec, Problems& problems)
    : text_(text, source, std::move(text_path), problems),
      whole_(whole, std::move(source), "", problems),
      spec_(&spec) {}

std::optional<Config> Config::section(std::string_view key) const {
  const Json* json = find(key);
  std::string path(key);
  if (json == nullptr && whole_.has("thinker_config")) {
    const Json& thinker = *whole_.find("thinker_config");
    const auto at = thinker.is_object() ? thinker.find(key) : thinker.end();
    json = at != thinker.end() && at->is_object() ? &*at : nullptr;
    path = "thinker_config." + path;
  }
  if (json == nullptr || !json->is_object() || json->empty()) {
    return std::nullopt;
  }
  return part(*json, std::move(path));
}

Config Config::part(const Json& json, std::string path) const {
  return Config(json, json, source(), std::move(path), *spec_, problems());
}

std::string Config::named(const std::string& key) const {
  return text_.path().empty() || nested() ? key : text_.path() + "." + key;
}

const JsonView& Config::level_of(std::string_view key) const {
  return text_.has(key) ? text_ : whole_;
}

std::optional<std::int64_t> Config::maybe(Keys keys, Range range) const {
  for (const JsonView* level : {&text_, &whole_}) {
    for (const std::string_view key : keys) {
      if (level->has(key)) {
        const auto value = level->integer(key, range.low, range.high);
        // A wrong value is a problem already; reading goes on with a harmless one.
        return value ? value : range.low;
      }
    }
  }
  return std::nullopt;
}

std::int64_t Config::required(Keys keys, Range range) const {
  if (const auto value = maybe(keys, range)) {
    return *value;
  }
  problems().add({source(), text_.path().empty() ? joined(keys) : text_.path() + "." + joined(keys),
                  "nothing", "the key " + joined(keys),
                  "the published config.json has it; is this file complete?"});
  return range.low;
}

std::int64_t Config::class_default(Keys keys, std::int64_t fallback, Range range) const {
  if (const auto value = maybe(keys, range)) {
    return *value;
  }
  assume(named(std::string(*keys.begin())), std::to_string(fallback),
         "not in the file; default of the " + spec_->family + " configuration class");
  return fallback;
}

std::int64_t Config::required_or(Keys keys, std::int64_t fallback, Range range) const {
  return fallback > 0 ? class_default(keys, fallback, range) : required(keys, range);
}

bool Config::class_default(std::string_view key, bool fallback) const {
  if (has(key)) {
    return flag(key, fallback);
  }
  assume(named(std::string(key)), fallback ? "true" : "false",
         "not in the file; default of the " + spec_->family + " configuration class");
  return fallback;
}

std::int64_t Config::plain(Keys keys, std::int64_t fallback, Range range) const {
  return maybe(keys, range).value_or(fallback);
}

bool Config::flag(std::string_view key, bool fallback) const {
  return level_of(key).boolean(key).value_or(fallback);
}

std::optional<double> Config::number(std::string_view key) const {
  return level_of(key).number(key);
}

std::optional<std::string> Config::text(std::string_view key) const {
  return level_of(key).text(key);
}

std::optional<std::vector<std::string>> Config::texts(std::string_view key) const {
  return level_of(key).texts(key);
}

bool Config::has(std::string_view key) const { return text_.has(key) || whole_.has(key); }

const Json* Config::find(std::string_view key) const { return level_of(key).find(key); }

std::optional<std::vector<std::int64_t>> Config::integers(std::string_view key, Range range) const {
  const Json* list = find(key);
  if (list == nullptr) {
    return std::nullopt;
  }
  const std::string expected =
      fmt::format("a list of integers from {} to {}", range.low, range.high);
  if (!list->is_array()) {
    complain(key, expected);
    return std::nullopt;
  }
  std::vector<std::int64_t> out;
  for (const Json& item : *list) {
    const bool fits = item.is_number_integer() &&
                      (!item.is_number_unsigned() ||
                       item.get<std::uint64_t>() <= static_cast<std::uint64_t>(range.high)) &&
                      item.get<std::int64_t>() >= range.low &&
                      item.get<std::int64_t>() <= range.high;
    if (!fits) {
      complain(key, expected);
      return std::nullopt;
    }
    out.push_back(item.get<std::int64_t>());
  }
  return out;
}

void Config::assume(std::string key, std::string value, std::string reason) const {
  spec_->assumptions.push_back({std::move(key), std::move(value), std::move(reason)});
}

void Config::complain(std::string_view key, std::string expected, std::string hint) const {
  level_of(key).complain(key, std::move(expected), std::move(hint));
}

Sizes read_sizes(const Config& config, ModelSpec& spec, bool tie_default, const SizeRules& rules) {
  Sizes sizes;
  sizes.hidden = config.required_or({"hidden_size", "n_embd", "d_model"}, rules.default_hidden,
                                    {1, kMostHidden});
  sizes.layers = static_cast<int>(
      config.required_or({"num_hidden_layers", "n_layers", "num_layers", "n_layer"},
                         rules.default_layers, {1, kMostLayers}));
  sizes.heads = config.required_or({"num_attention_heads", "n_heads", "n_head"},
                                   rules.default_heads, {1, kMostHeads});
  sizes.kv_heads = sizes.heads;
  if (rules.read_kv_heads) {
    sizes.kv_heads = config.class_default(
        {"num_key_value_heads", "multi_query_group_num", "num_kv_heads"},
        rules.default_kv_heads > 0 ? rules.default_kv_heads : sizes.heads, {1, kMostHeads});
  }
  sizes.vocabulary = config.required_or({"vocab_size", "padded_vocab_size"},
                                        rules.default_vocabulary, {1, kMostVocabulary});
  if (rules.read_width) {
    sizes.width = config.required_or({"intermediate_size", "ffn_hidden_size", "n_inner"},
                                     rules.default_width, {1, kMostWidth}) /
                  (rules.halve_width ? 2 : 1);
  }
  const Range head_dim_range{1, kMostHeadDim};
  if (const auto given = config.maybe({"head_dim", "kv_channels"}, head_dim_range)) {
    sizes.head_dim = *given;
  } else if (rules.head_dim) {
    sizes.head_dim = config.class_default({"head_dim"}, *rules.head_dim, head_dim_range);
  } else {
    sizes.head_dim = sizes.hidden / sizes.heads;
    if (sizes.hidden % sizes.heads != 0) {
      config.complain(
          "num_attention_heads",
          fmt::format("a divisor of hidden_size {}, as no head_dim is given", sizes.hidden));
    }
  }
  if (sizes.heads % sizes.kv_heads != 0) {
    config.complain("num_key_value_heads",
                    fmt::format("a divisor of num_attention_heads {}", sizes.heads));
  }
  spec.hidden = sizes.hidden;
  spec.vocabulary = sizes.vocabulary;
  spec.tie_word_embeddings = config.class_default("tie_word_embeddings", tie_default);
  return sizes;
}

std::vector<std::string> read_layer_types(const Config& config, int layers) {
  auto types = config.texts("layer_types").value_or(std::vector<std::string>{});
  if (!types.empty() && types.size() != static_cast<std::size_t>(layers)) {
    config.complain("layer_types", fmt::format("{} entries, one a layer", layers));
    types.clear();
  }
  return types;
}

}  // namespace oomcast::models
