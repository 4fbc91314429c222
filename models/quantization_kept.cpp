// Which linears a quantised checkpoint leaves in 16 bits.
//
// Publishers name modules of the unfused checkpoint ("model.layers.3.mlp.gate_proj"), parts of such
// names ("visual", "self_attn"), names with '*', or regular expressions ("re:.*self_attn.*"). A
// fused tensor stays in 16 bits if any of its parts is named: engines demand that they agree.
#include "models/quantization_kept.hpp"

#include <algorithm>
#include <map>
#include <regex>

namespace oomcast::models {
namespace {

constexpr std::size_t kMostPlain = 4096;
constexpr std::size_t kMostLayered = 256;
constexpr std::size_t kMostLayeredExpressions = 16;
constexpr std::size_t kLongestPattern = 512;

// "self_attn.o_proj" -> "mixer.o_proj", where the family's checkpoints say mixer; else empty.
std::string other_name(const ModelSpec& spec, std::string_view base) {
  for (const auto& [ours, theirs] :
       {std::pair{std::string_view("self_attn"), spec.attention_module},
        std::pair{std::string_view("mlp"), spec.ffn_module}}) {
    if (ours != theirs && base.starts_with(ours) && base.substr(ours.size()).starts_with('.')) {
      return std::string(theirs) + std::string(base.substr(ours.size()));
    }
  }
  return {};
}

// The names and those of the parts that it is fused from.
void add_names(std::string_view base, std::vector<std::string>& names) {
  static const std::map<std::string, std::vector<std::string>> parts_of = {
      {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
      {"gate_up_proj", {"gate_proj", "up_proj"}},
      {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa"}},
      {"w13", {"0.gate_proj", "0.up_proj", "0.w1", "0.w3"}},
      {"w2", {"0.down_proj", "0.w2"}},
      {"fused_wqa_wkv", {"wq_a", "wkv"}},
      {"index_qk_proj", {"index_q_proj", "index_k_proj"}},
      {"in_proj_qkvz", {"in_proj_qkvz", "in_proj_qkv", "in_proj_z"}},
      {"in_proj_ba", {"in_proj_ba", "in_proj_b", "in_proj_a"}},
  };
  names.emplace_back(base);
  const std::size_t tail = base.rfind('.') + 1;  // 0 without a dot
  if (const auto parts = parts_of.find(std::string(base.substr(tail))); parts != parts_of.end()) {
    for (const std::string& part : parts->second) {
      names.push_back(std::string(base.substr(0, tail)) + part);
    }
  }
}

// Names of the checkpoint's linears behind one fused tensor, below the layer's prefix.
std::vector<std::string> module_names(const ModelSpec& spec, std::string_view tensor) {
  const std::string_view base = tensor.substr(0, tensor.rfind('.'));  // without ".weight"
  std::vector<std::string> names;
  add_names(base, names);
  if (const std::string other = other_name(spec, base); !other.empty()) {
    add_names(other, names);
  }
  // Shared experts go by two names.
  const std::string shared = ".shared_experts.";
  for (std::size_t i = 0, count = names.size(); i < count; ++i) {
    if (const std::size_t at = names[i].find(shared); at != std::string::npos) {
      names.push_back(std::string(names[i]).replace(at, shared.size(), ".shared_expert."));
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

bool has_digit(std::string_view text) {
  return text.find_first_of("0123456789") != std::string_view::npos;
}

// Names sorted by how often they must be tried: once per tensor of a layer kind where they cannot
// tell layers apart, else once per layer; the second kind is bounded tightly.
class Patterns {
 public:
  Patterns(const std::vector<std::string>& names, Problems& problems, const std::string& source) {
    for (const std::string& name : names) {
      const int layer = layer_of(name);
      if (name.starts_with("re:")) {
        add_expression(name.substr(3), problems, source);
      } else if (layer >= 0) {
        by_layer_[layer].push_back(name);
      } else {
        (name.find("layers.") == std::string::npos ? plain_ : layered_).push_back(name);
      }
    }
    limit(plain_.size() + plain_expressions_.size(), kMostPlain, "that name no layer", problems,
          source);
    limit(layered_.size(), kMostLayered, "over layer numbers", problems, source);
    limit(layered_expressions_.size(), kMostLayeredExpressions,
          "that are regular expressions with digits", problems, source);
  }

  // Whether the tensor is named whatever its layer. `names` lie below the layer's prefix.
  [[nodiscard]] bool match_any_layer(const std::vector<std::string>& names) const {
    return std::any_of(names.begin(), names.end(), [this](const std::string& name) {
      const std::string full = "model.layers.N." + name;
      return any_matches(plain_, full) || any_expression(plain_expressions_, full);
    });
  }

  [[nodiscard]] bool match_layer(int layer, const std::vector<std::string>& names) const {
    const auto own = by_layer_.find(layer);
    if (own == by_layer_.end() && layered_.empty() && layered_expressions_.empty()) {
      return false;
    }
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const std::string full = fmt::format("model.layers.{}.{}", layer, name);
      return (own != by_layer_.end() && any_matches(own->second, full)) ||
             any_matches(layered_, full) || any_expression(layered_expressions_, full);
    });
  }

 private:
  static void limit(std::size_t count, std::size_t most, std::string_view what, Problems& problems,
                    const std::string& source) {
    if (count > most) {
      problems.add({source, "ignored modules", fmt::format("{} patterns", count),
                    fmt::format("at most {} {}", most, what), ""});
      // Throws at once: trying them all could take minutes.
      problems.raise_if_any();
    }
  }

  void add_expression(const std::string& text, Problems& problems, const std::string& source) {
    try {
      if (text.size() > kLongestPattern) {
        throw std::regex_error(std::regex_constants::error_complexity);
      }
      // Polynomial time whatever the pattern: no backtracking.
      (has_digit(text) ? layered_expressions_ : plain_expressions_)
          .emplace_back(text,
                        std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
    } catch (const std::regex_error&) {
      problems.add({source, "ignored modules", "re:" + text,
                    fmt::format("a regular expression of at most {} letters without back "
                                "references",
                                kLongestPattern),
                    ""});
    }
  }

  static bool any_expression(const std::vector<std::regex>& expressions, const std::string& full) {
    return std::any_of(expressions.begin(), expressions.end(), [&](const std::regex& expression) {
      return std::regex_search(full, expression, std::regex_constants::match_continuous);
    });
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

  std::map<int, std::vector<std::string>> by_layer_;
  std::vector<std::string> plain_;
  std::vector<std::string> layered_;
  std::vector<std::regex> plain_expressions_;
  std::vector<std::regex> layered_expressions_;
};

using NamesOfKind = std::vector<std::vector<std::string>>;  // of each tensor of a layer kind

// Marks the tensors of every layer, then of the draft layers, that the patterns name.
class Marker {
 public:
  explicit Marker(const ModelSpec& spec) : spec_(spec) {
    for (const LayerSpec& kind : spec.layer_kinds) {
      names_.push_back(names_of(kind));
    }
    for (const LayerSpec& layer : spec.draft_layers) {
      draft_names_.push_back(names_of(layer));
    }
  }

  [[nodiscard]] std::vector<std::uint64_t> mark(const std::vector<std::string>& names,
                                                Problems& problems,
                                                const std::string& source) const {
    const auto layers = static_cast<std::size_t>(spec_.layer_count());
    std::vector<std::uint64_t> bits(layers + spec_.draft_layers.size(), 0);
    if (names.empty()) {
      return bits;
    }
    const Patterns patterns(names, problems, source);
    std::vector<std::uint64_t> everywhere;
    for (std::size_t kind = 0; kind < names_.size(); ++kind) {
      everywhere.push_back(mark_any_layer(patterns, spec_.layer_kinds[kind], names_[kind]));
    }
    for (std::size_t i = 0; i < layers; ++i) {
      const std::uint16_t kind = spec_.layer_kind[i];
      bits[i] = everywhere[kind] |
                mark_layer(patterns, static_cast<int>(i), spec_.layer_kinds[kind], names_[kind]);
    }
    for (std::size_t i = 0; i < draft_names_.size(); ++i) {
      const LayerSpec& layer = spec_.draft_layers[i];
      bits[layers + i] = mark_any_layer(patterns, layer, draft_names_[i]) |
                         mark_layer(patterns, static_cast<int>(layers + i), layer, draft_names_[i]);
    }
    return bits;
  }

 private:
  [[nodiscard]] NamesOfKind names_of(const LayerSpec& layer) const {
    OOMCAST_CHECK(layer.tensors.size() <= 64, "{} tensors in one layer", layer.tensors.size());
    NamesOfKind names;
    for (const TensorSpec& tensor : layer.tensors) {
      names.push_back(module_names(spec_, tensor.name));
    }
    return names;
  }

  template <typename Matches>
  static std::uint64_t mark_tensors(const LayerSpec& layer, const NamesOfKind& names,
                                    Matches matches) {
    std::uint64_t bits = 0;
    for (std::size_t t = 0; t < layer.tensors.size(); ++t) {
      if (layer.tensors[t].quantisable && matches(names[t])) {
        bits |= std::uint64_t{1} << t;
      }
    }
    return bits;
  }
  static std::uint64_t mark_any_layer(const Patterns& patterns, const LayerSpec& layer,
                                      const NamesOfKind& names) {
    return mark_tensors(layer, names,
                        [&](const auto& of_tensor) { return patterns.match_any_layer(of_tensor); });
  }
  static std::uint64_t mark_layer(const Patterns& patterns, int number, const LayerSpec& layer,
                                  const NamesOfKind& names) {
    return mark_tensors(layer, names, [&](const auto& of_tensor) {
      return patterns.match_layer(number, of_tensor);
    });
  }

  const ModelSpec& spec_;
  std::vector<NamesOfKind> names_;
  std::vector<NamesOfKind> draft_names_;
};

// Lists that speak of the whole draft ("mtp*", "mtp.layers.0*").
bool names_draft(const std::string& name) { return name.starts_with("mtp"); }

}  // namespace

void mark_kept(const ModelSpec& spec, Quantization& quantization, Problems& problems,
               const std::string& source) {
  const Marker marker(spec);
  std::vector<std::string> ignore;
  bool draft_kept = false;
  for (const std::string& name : quantization.ignore) {
    if (names_draft(name)) {
      draft_kept = true;
    } else {
      ignore.push_back(name);
    }
  }
  quantization.kept = marker.mark(ignore, problems, source);
  if (draft_kept) {
    for (std::size_t i = 0; i < spec.draft_layers.size(); ++i) {
      quantization.kept[static_cast<std::size_t>(spec.layer_count()) + i] = ~std::uint64_t{0};
    }
  }
  for (std::size_t i = 0; i < quantization.others.size(); ++i) {
    Quantization& other = quantization.others[i];
    other.uses = marker.mark(other.targets, problems, source);
    if (std::find(other.targets.begin(), other.targets.end(), "lm_head") != other.targets.end()) {
      quantization.head = static_cast<int>(i);
    }
  }
}

}  // namespace oomcast::models
