// Which linears a quantised checkpoint leaves in 16 bits.
//
// Publishers name modules of the unfused checkpoint ("model.layers.3.mlp.gate_proj"), parts of such
// names ("visual", "self_attn"), names with '*', or regular expressions ("re:.*self_attn.*"). A
// fused tensor stays in 16 bits if any of its parts is named: engines demand that they agree.
#include "models/quantization_kept.hpp"

#include <algorithm>
#include <map>
#include <regex>
#include <unordered_set>

namespace oomcast::models {
namespace {

constexpr std::size_t kMostGeneral = 4096;
constexpr std::size_t kLongestPattern = 512;

// Names of the checkpoint's linears behind one fused tensor, below the layer's prefix.
std::vector<std::string> module_names(std::string_view tensor) {
  std::string base(tensor);
  const std::size_t dot = base.rfind('.');
  if (dot != std::string::npos) {
    base.resize(dot);  // without ".weight"
  }
  static const std::map<std::string, std::vector<std::string>> kParts = {
      {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
      {"gate_up_proj", {"gate_proj", "up_proj"}},
      {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa"}},
      {"w13", {"0.gate_proj", "0.up_proj", "0.w1", "0.w3"}},
      {"w2", {"0.down_proj", "0.w2"}},
      {"in_proj_qkvz", {"in_proj_qkvz", "in_proj_qkv", "in_proj_z"}},
      {"in_proj_ba", {"in_proj_ba", "in_proj_b", "in_proj_a"}},
  };
  const std::size_t last = base.rfind('.');
  const std::string head = last == std::string::npos ? "" : base.substr(0, last + 1);
  const std::string tail = last == std::string::npos ? base : base.substr(last + 1);
  std::vector<std::string> names = {base};
  if (const auto parts = kParts.find(tail); parts != kParts.end()) {
    for (const std::string& part : parts->second) {
      names.push_back(head + part);
    }
  }
  return names;
}

// '*' matches anything; linear time.
bool glob_matches(std::string_view pattern, std::string_view text) {
  std::size_t star = std::string_view::npos;
  std::size_t retry = 0;
  std::size_t p = 0;
  std::size_t t = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      retry = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++retry;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

// The number after "layers." in a name, or -1. "layers.1*" names layers 1 and 10 to 19, so no one.
int layer_of(std::string_view name) {
  const std::size_t at = name.find("layers.");
  if (at == std::string_view::npos) {
    return -1;
  }
  int layer = -1;
  std::size_t i = at + 7;
  for (; i < name.size() && name[i] >= '0' && name[i] <= '9'; ++i) {
    layer = std::max(layer, 0) * 10 + (name[i] - '0');
    if (layer > static_cast<int>(kMostLayers)) {
      return -1;
    }
  }
  return i < name.size() && name[i] == '*' ? -1 : layer;
}

struct Expression {
  std::regex regex;
  bool names_digits = false;  // may tell layers apart
};

class Patterns {
 public:
  Patterns(const std::vector<std::string>& names, Problems& problems, const std::string& source) {
    for (const std::string& name : names) {
      if (name.starts_with("re:")) {
        add_expression(name.substr(3), problems, source);
        continue;
      }
      const int layer = layer_of(name);
      (layer >= 0 ? by_layer_[layer] : general_).push_back(name);
    }
    if (general_.size() + expressions_.size() > kMostGeneral) {
      problems.add({source, "ignored modules",
                    fmt::format("{} patterns", general_.size() + expressions_.size()),
                    fmt::format("at most {} that name no layer", kMostGeneral), ""});
      general_.clear();
      expressions_.clear();
    }
  }

  // `names` below the layer's prefix.
  [[nodiscard]] bool match(int layer, const std::vector<std::string>& names) const {
    const auto own = by_layer_.find(layer);
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const std::string full = fmt::format("model.layers.{}.{}", layer, name);
      return (own != by_layer_.end() && any_matches(own->second, full)) ||
             any_matches(general_, full) || any_expression(full, layer);
    });
  }

 private:
  void add_expression(const std::string& text, Problems& problems, const std::string& source) {
    try {
      if (text.size() > kLongestPattern) {
        throw std::regex_error(std::regex_constants::error_complexity);
      }
      // Polynomial time whatever the pattern: no backtracking.
      expressions_.push_back(
          {std::regex(text, std::regex_constants::ECMAScript | std::regex_constants::__polynomial),
           text.find_first_of("0123456789") != std::string::npos});
    } catch (const std::regex_error&) {
      problems.add({source, "ignored modules", "re:" + text,
                    fmt::format("a regular expression of at most {} letters without back "
                                "references",
                                kLongestPattern),
                    ""});
    }
  }

  static bool any_matches(const std::vector<std::string>& patterns, const std::string& full) {
    // Outer prefixes differ by model ("model.language_model.layers…"), so a name matches from
    // "layers." on, and a bare part matches whole components.
    const std::string dotted = "." + full + ".";
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      if (pattern.find('*') != std::string::npos) {
        const std::size_t from = pattern.find("layers.");
        const std::string core = from == std::string::npos ? pattern : "*" + pattern.substr(from);
        return glob_matches(core, full);
      }
      const std::size_t from = pattern.find("layers.");
      const std::string core = from == std::string::npos ? pattern : pattern.substr(from);
      return !core.empty() && dotted.find("." + core + ".") != std::string::npos;
    });
  }

  bool any_expression(const std::string& full, int layer) const {
    return std::any_of(expressions_.begin(), expressions_.end(), [&](const Expression& expression) {
      const std::string& subject =
          expression.names_digits || layer == 0 ? full : at_layer_zero(full, layer);
      const std::string key = fmt::format("{}|{}", &expression - expressions_.data(), subject);
      const auto known = matched_.find(key);
      if (known != matched_.end()) {
        return known->second;
      }
      return matched_[key] = std::regex_search(subject, expression.regex,
                                               std::regex_constants::match_continuous);
    });
  }

  // Layers differ only in their number; most expressions do not look at it.
  static std::string at_layer_zero(const std::string& full, int layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    return "model.layers.0." + full.substr(prefix.size());
  }

  std::map<int, std::vector<std::string>> by_layer_;
  std::vector<std::string> general_;
  std::vector<Expression> expressions_;
  mutable std::map<std::string, bool> matched_;
};

}  // namespace

void mark_kept(ModelSpec& spec, Problems& problems, const std::string& source) {
  Quantization& quantization = *spec.quantization;
  quantization.kept.assign(static_cast<std::size_t>(spec.layer_count()), 0);
  if (quantization.ignore.empty()) {
    return;
  }
  const Patterns patterns(quantization.ignore, problems, source);
  std::vector<std::vector<std::vector<std::string>>> names(spec.layer_kinds.size());
  for (std::size_t kind = 0; kind < spec.layer_kinds.size(); ++kind) {
    for (const TensorSpec& tensor : spec.layer_kinds[kind].tensors) {
      names[kind].push_back(module_names(tensor.name));
    }
  }
  for (int i = 0; i < spec.layer_count(); ++i) {
    const auto kind = spec.layer_kind[static_cast<std::size_t>(i)];
    const auto& tensors = spec.layer_kinds[kind].tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].quantisable && patterns.match(i, names[kind][t])) {
        quantization.kept[static_cast<std::size_t>(i)] |= std::uint64_t{1} << t;
      }
    }
  }
}

}  // namespace oomcast::models
