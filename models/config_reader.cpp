#include "models/config_reader.hpp"

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/checkpoint.hpp"
#include "models/families/family.hpp"
#include "models/families/towers.hpp"
#include "models/quantization.hpp"

namespace oomcast::models {
namespace {

struct Nested {
  const Json* text = nullptr;
  std::string path;
};

// Where the language model's keys are. Engines look in the same places.
Nested language_level(const Json& whole) {
  for (const char* const outer :
       {"thinker_config", "llm_config", "text_config", "language_config"}) {
    const auto at = whole.find(outer);
    if (at == whole.end() || !at->is_object()) {
      continue;
    }
    const auto inner = at->find("text_config");
    if (inner != at->end() && inner->is_object()) {
      return {&*inner, std::string(outer) + ".text_config"};
    }
    return {&*at, outer};
  }
  return {&whole, ""};
}

// What a JSON file without an architecture may be instead; helps people who picked the wrong file.
std::string other_kind(const Json& json) {
  if (json.contains("_class_name")) {
    return "this is the configuration of a diffusion pipeline";
  }
  if (json.contains("tokenizer_class") || json.contains("added_tokens_decoder")) {
    return "this is a tokenizer configuration; config.json lies beside it";
  }
  if (json.contains("weight_map")) {
    return "this is the index of a checkpoint; config.json lies beside it";
  }
  if (json.contains("peft_type")) {
    return "this is a LoRA adapter; give the config.json of its base model";
  }
  if (json.contains("image_processor_type") || json.contains("processor_class")) {
    return "this is a preprocessor configuration; config.json lies beside it";
  }
  if (json.contains("quantization") && json.contains("producer")) {
    return "this is hf_quant_config.json; give the config.json beside it";
  }
  if (json.contains("temperature") || json.contains("do_sample")) {
    return "this is generation_config.json; config.json lies beside it";
  }
  if (json.contains("oomcast") || json.contains("schema")) {
    return "this is an output of oomcast";
  }
  return "give the config.json of a Hugging Face model";
}

const Family* find_family(std::string_view architecture) {
  const auto& table = families();
  const auto at = std::lower_bound(
      table.begin(), table.end(), architecture,
      [](const Family& family, std::string_view name) { return family.architecture < name; });
  return at != table.end() && at->architecture == architecture ? &*at : nullptr;
}

struct Choice {
  const Family* family = nullptr;
  std::string architecture;
};

// The builder for `json`: the first known entry of `architectures`, else by model_type.
Choice choose_family(const Json& json, const std::string& source, const std::string& path,
                     ModelSpec& spec, Problems& problems) {
  const JsonView view(json, source, path, problems);
  const auto architectures = view.texts("architectures").value_or(std::vector<std::string>{});
  for (const std::string& name : architectures) {
    if (const Family* family = find_family(name)) {
      return {family, name};
    }
  }
  const std::string type = view.text("model_type").value_or("");
  const std::string by_type(architecture_of_model_type(type));
  if (!architectures.empty()) {
    const std::string nearest = did_you_mean(architectures.front(), supported_architectures());
    std::string hint = nearest.empty() ? "`oomcast list models` shows what is supported" : nearest;
    if (view.has("auto_map")) {
      hint += "; its code lies with the checkpoint (auto_map)";
    }
    problems.add({source, path.empty() ? "architectures" : path + ".architectures",
                  architectures.front(), "an architecture that oomcast has a builder for", hint});
    return {};
  }
  if (!by_type.empty()) {
    spec.assumptions.push_back(
        {"architectures", by_type, "not in the file; from model_type " + type});
    return {find_family(by_type), by_type};
  }
  std::vector<std::string> known = supported_architectures();
  problems.add({source, path.empty() ? "architectures" : path + ".architectures",
                type.empty() ? "nothing" : "model_type " + type,
                "architectures, or a model_type that oomcast knows",
                path.empty() ? other_kind(json) : ""});
  return {};
}

DType read_dtype(const Config& config, ModelSpec& spec) {
  for (const char* const key : {"torch_dtype", "dtype"}) {
    if (const auto text = config.text(key)) {
      const auto dtype = parse_dtype(*text);
      if (dtype && (bits_of(*dtype) == 16 || *dtype == DType::kFloat32)) {
        return *dtype;
      }
      // Some exporters write "auto" or the quantised type here.
      spec.assumptions.push_back(
          {key, "bfloat16", "`" + text->substr(0, 40) + "` is no dtype to compute in"});
      return DType::kBFloat16;
    }
  }
  spec.assumptions.push_back({"torch_dtype", "bfloat16", "not in the file"});
  return DType::kBFloat16;
}

// Facts: vLLM 1.2 (config/model.py, _get_and_verify_max_len).
LengthRule read_length(const Config& config, const ModelSpec& spec) {
  LengthRule rule;
  std::optional<std::int64_t> least;
  for (const char* const key :
       {"max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
        "max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"}) {
    const auto value = config.text_level().integer(key, 1, kMostPosition);
    if (value && (!least || *value < *least)) {
      least = *value;
      rule.key = key;
    }
  }
  if (const auto limit = config.text_level().integer("model_max_length", 1, kMostPosition)) {
    least = *limit;
    rule.key = "model_max_length";
  }
  if (!least && !spec.ropes.empty()) {
    // The class default that the rope table was made with.
    least = spec.ropes.front().max_position;
  }
  rule.declared = Tokens{least.value_or(2048)};
  rule.derived = rule.declared;
  const bool exempt = spec.model_type.find("gemma3") != std::string::npos;
  for (const RopeSpec& rope : spec.ropes) {
    if (exempt || rope.factor == 1.0 || rope.type == "longrope" || rope.type == "llama3") {
      continue;
    }
    const bool yarn = rope.type == "yarn" || rope.type == "deepseek_yarn";
    const auto base =
        static_cast<double>(yarn && rope.original_max_position > 0 ? rope.original_max_position
                                                                   : rule.declared.count());
    rule.derived = Tokens{static_cast<std::int64_t>(base * rope.factor)};
  }
  return rule;
}

// Python writes Infinity and NaN, which JSON does not know; they read as null.
std::string without_python_numbers(std::string_view text) {
  static constexpr std::array<std::string_view, 3> kTokens = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  out.reserve(text.size());
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!in_string) {
      const auto token = std::find_if(kTokens.begin(), kTokens.end(), [&](std::string_view name) {
        return text.substr(i).starts_with(name);
      });
      if (token != kTokens.end()) {
        out += "null";
        i += token->size() - 1;
        continue;
      }
    }
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      out += text[i++];
    }
    out += text[i];
  }
  return out;
}

Json read_config_file(const std::string& path) {
  return parse_json(without_python_numbers(read_text_file(path)), path);
}

Json read_quant_file(const std::string& config_path) {
  namespace fs = std::filesystem;
  const fs::path path(config_path);
  std::error_code ignored;
  for (const fs::path& candidate :
       {path.parent_path() / "hf_quant_config.json",
        path.parent_path() / (path.stem().string() + ".hf_quant_config.json")}) {
    if (fs::is_regular_file(candidate, ignored)) {
      return read_config_file(candidate.string());
    }
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.emplace_back(family.architecture);
  }
  return names;
}

ModelSpec read_model_config(const Json& config, const std::string& source,
                            const Json& hf_quant_config) {
  if (!config.is_object()) {
    throw ConfigError(Problem{source, "", config.dump().substr(0, 64), "a JSON object",
                              "give the config.json of a Hugging Face model"});
  }
  ModelSpec spec;
  spec.name = source;
  Problems problems;
  const Nested nested = language_level(config);
  Choice choice = choose_family(config, source, "", spec, problems);
  std::string text_path = nested.path;
  if (choice.family != nullptr && choice.family->build == nullptr) {
    if (nested.text == &config) {
      problems.add(
          {source, "text_config", "nothing", "the nested config of the language model", ""});
    } else {
      spec.architecture = choice.architecture;
      choice = choose_family(*nested.text, source, nested.path, spec, problems);
    }
  }
  problems.raise_if_any();
  OOMCAST_CHECK(choice.family != nullptr, "no family and no problem for {}", source);
  if (choice.family->build == nullptr) {
    throw ConfigError(Problem{source, nested.path + ".architectures", choice.architecture,
                              "the architecture of a language model", ""});
  }
  if (spec.architecture.empty()) {
    spec.architecture = choice.architecture;
  }
  spec.family = std::string(choice.family->name);
  const Config reader(config, *nested.text, source, text_path, spec, problems);
  spec.model_type = reader.text("model_type").value_or("");
  spec.dtype = read_dtype(reader, spec);
  choice.family->build(reader, spec);
  spec.length = read_length(reader, spec);
  add_towers(reader, spec);
  if (read_drafts(reader) > 0 && spec.draft_layers.empty()) {
    spec.notes.emplace_back("the draft layers of this family are not described and not counted");
  }
  read_quantization(reader, hf_quant_config, spec);
  problems.raise_if_any();
  try {
    Bytes parameters;
    for (const Component component :
         {Component::kText, Component::kVision, Component::kAudio, Component::kMtp}) {
      parameters += Bytes{parameter_count(spec, component)};
    }
    if (parameters <= Bytes{kMostParameters}) {
      return spec;
    }
  } catch (const ArithmeticOverflow&) {
    // Reported below: the sizes are each in range, their product is not.
  }
  throw ConfigError(Problem{source, "hidden_size, num_hidden_layers, vocab_size …",
                            "more than 2^50 parameters together", "sizes of a model", ""});
}

ModelSpec read_model_config_text(std::string_view text, const std::string& source) {
  return read_model_config(parse_json(without_python_numbers(text), source), source);
}

namespace {

void join(Json& target, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object() && target.contains(key) && target.at(key).is_object()) {
      join(target.at(key), value);
    } else {
      target[key] = value;
    }
  }
}

}  // namespace

Json with_changes(Json config, const Json& changes) {
  if (!config.is_object() || !changes.is_object()) {
    return config;
  }
  constexpr std::string_view kNested = "_config";
  for (const auto& [key, value] : changes.items()) {
    const bool object = value.is_object() && config.contains(key) && config.at(key).is_object();
    if (object && key.ends_with(kNested)) {
      join(config.at(key), value);
    } else if (key == "rope_scaling" && value.is_object() && config.contains("rope_parameters")) {
      // One is the other's older name; the base stays.
      join(config.at("rope_parameters"), value);
    } else {
      config[key] = value;
    }
  }
  return config;
}

ModelSpec read_model_config(const std::string& path, const Json& changes) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::string file = path;
  if (fs::is_directory(path, ignored)) {
    file = (fs::path(path) / "config.json").string();
    if (!fs::is_regular_file(file, ignored)) {
      throw ConfigError(Problem{path, "", "", "a folder that holds config.json", ""});
    }
  }
  ModelSpec spec =
      read_model_config(with_changes(read_config_file(file), changes), file, read_quant_file(file));
  if (const auto checkpoint = find_checkpoint(file)) {
    follow_checkpoint(*checkpoint, spec);
  }
  return spec;
}

}  // namespace oomcast::models
