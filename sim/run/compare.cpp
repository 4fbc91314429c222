#include "sim/run/compare.hpp"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>

#include "sim/core/error.hpp"

namespace oomcast {
namespace {

// ---- JSON ---------------------------------------------------------------------------------------

OrderedJson figures_json(const ComparedFigures& figures) {
  OrderedJson json;
  json["kv_tokens"] = figures.kv_tokens ? OrderedJson(*figures.kv_tokens) : OrderedJson(nullptr);
  json["classes"] = OrderedJson::object();
  for (std::size_t leaf = 0; leaf < kLeafCount; ++leaf) {
    json["classes"][std::string(kLeafNames[leaf])] = figures.classes[leaf].count();
  }
  json["free_bytes"] = figures.free.count();
  json["device_peak_bytes"] = figures.device_peak.count();
  return json;
}

OrderedJson side_json(const ComparedSide& side) {
  OrderedJson json;
  json["source"] = side.source;
  json["engine"] = side.engine;
  json["engine_version"] = side.engine_version;
  json["model"] = side.model;
  json["gpu"] = side.gpu;
  json["outcome"] = side.kind;
  json["ranks"] = side.ranks;
  json["rank"] = side.rank;
  json["total_bytes"] = side.total.count();
  json.update(figures_json(side.figures));
  if (side.totals) {
    json["totals"] = OrderedJson(*side.totals);
  }
  return json;
}

OrderedJson table_json(const ComparedSide& a, const ComparedSide& b) {
  OrderedJson json;
  json["schema"] = "oomcast.compare/1";
  json["a"] = side_json(a);
  json["b"] = side_json(b);
  json["difference"] = figures_json(b.figures - a.figures);
  return json;
}

// ---- changes ------------------------------------------------------------------------------------

// All that a deployment is resolved from. The launch is JSON with what was given only: defaults
// follow from the version.
struct Recipe {
  Json launch;
  std::shared_ptr<const models::ModelSpec> model;
  models::GpuSpec gpu;
  CardState card;
  Assumed assumed;
};

Recipe recipe_of(const EngineDeployment& deployment) {
  Recipe recipe{Json(launch::to_json(deployment.launch)), deployment.model, deployment.gpu,
                deployment.card, deployment.assumed};
  Json& flags = recipe.launch.at("flags");
  for (auto flag = flags.begin(); flag != flags.end();) {
    flag = flag->at("origin") == "default" ? flags.erase(flag) : std::next(flag);
  }
  recipe.launch["notes"] = Json::array();
  recipe.launch["warnings"] = Json::array();
  return recipe;
}

struct Change {
  std::string name;  // "--max-num-seqs 256 -> 512"
  std::function<void(Recipe&)> apply;
};

std::string shown_value(const Json& value) {
  return value.is_null()     ? "automatic"
         : value.is_string() ? value.get<std::string>()
                             : value.dump();
}

// As resolved, defaults included.
std::string flag_in(const launch::Launch& launch, const std::string& flag) {
  const auto found = launch.flags.find(flag);
  return found == launch.flags.end() ? "none" : shown_value(found->second.value);
}

std::string flag_change(const launch::Launch& a, const launch::Launch& b, const std::string& flag) {
  return fmt::format("--{} {} -> {}", flag, flag_in(a, flag), flag_in(b, flag));
}

std::string variable_change(const launch::Launch& a, const launch::Launch& b,
                            const std::string& name) {
  return fmt::format("{} {} -> {}", name, a.variable(name).value_or("unset"),
                     b.variable(name).value_or("unset"));
}

// Keys of which the values differ or one is missing, sorted.
template <typename Map, typename Same>
std::vector<std::string> differing(const Map& a, const Map& b, Same same) {
  std::set<std::string> names;
  for (const auto& [name, value] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !same(value, other->second)) {
      names.insert(name);
    }
  }
  for (const auto& [name, value] : b) {
    if (a.find(name) == a.end()) {
      names.insert(name);
    }
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> differing_variables(const launch::Launch& a, const launch::Launch& b) {
  return differing(a.environment, b.environment, std::equal_to<>());
}

// Of flags that were given: a default follows from the version.
std::vector<std::string> differing_flags(const launch::Launch& a, const launch::Launch& b) {
  const auto given = [](const launch::Launch& launch) {
    std::map<std::string, Json> values;
    for (const auto& [name, flag] : launch.flags) {
      if (flag.origin != launch::Origin::kDefault) {
        values.emplace(name, flag.value);
      }
    }
    return values;
  };
  return differing(given(a), given(b), std::equal_to<>());
}

// Puts what `to` has under `section`.`name` into a recipe, or removes it.
std::function<void(Recipe&)> patch(const char* section, const std::string& name, const Recipe& to) {
  const Json& entries = to.launch.at(section);
  const auto found = entries.find(name);
  const std::optional<Json> entry = found == entries.end() ? std::nullopt : std::optional(*found);
  return [section, name, entry](Recipe& recipe) {
    if (entry) {
      recipe.launch.at(section)[name] = *entry;
    } else {
      recipe.launch.at(section).erase(name);
    }
  };
}

std::vector<Change> changes_between(const EngineDeployment& a, const EngineDeployment& b) {
  const Recipe to = recipe_of(b);
  std::vector<Change> changes;
  if (a.launch.version_text != b.launch.version_text) {
    changes.push_back({fmt::format("{} {} -> {}", launch::to_string(a.launch.engine),
                                   a.launch.version_text, b.launch.version_text),
                       [version = to.launch.at("version")](Recipe& recipe) {
                         recipe.launch["version"] = version;
                       }});
  }
  if (a.gpu.name != b.gpu.name) {
    changes.push_back({fmt::format("card {} -> {}", a.gpu.name, b.gpu.name),
                       [gpu = to.gpu, card = to.card](Recipe& recipe) {
                         recipe.gpu = gpu;
                         recipe.card = card;
                       }});
  }
  if (a.launch.model != b.launch.model || a.model->name != b.model->name) {
    changes.push_back({fmt::format("model {} -> {}", a.launch.model, b.launch.model),
                       [model = to.model, name = to.launch.at("model")](Recipe& recipe) {
                         recipe.model = model;
                         recipe.launch["model"] = name;
                       }});
  }
  for (const std::string& name : differing_variables(a.launch, b.launch)) {
    changes.push_back({variable_change(a.launch, b.launch, name), patch("environment", name, to)});
  }
  for (const std::string& name : differing_flags(a.launch, b.launch)) {
    changes.push_back({flag_change(a.launch, b.launch, name), patch("flags", name, to)});
  }
  return changes;
}

// What differs between the launches of two runs, by name only.
OrderedJson named_changes(const launch::Launch& a, const launch::Launch& b) {
  OrderedJson changes = OrderedJson::array();
  const auto add = [&changes](const std::string& name) {
    changes.push_back({{"change", name},
                       {"outcome", nullptr},
                       {"in_order", nullptr},
                       {"alone", nullptr},
                       {"interaction", nullptr}});
  };
  for (const std::string& name : differing_variables(a, b)) {
    add(variable_change(a, b, name));
  }
  for (const std::string& name : differing_flags(a, b)) {
    add(flag_change(a, b, name));
  }
  return changes;
}

// The startup that a recipe leads to; nullopt where the engine refuses it.
std::optional<ComparedSide> simulated(const Recipe& recipe) {
  try {
    const Plan plan =
        start(resolve_for_engine(launch::launch_from_json(recipe.launch, "launch"), recipe.model,
                                 recipe.gpu, recipe.card, recipe.assumed));
    return compared_side(Json(plan_json(plan)), "launch");
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

class Attribution {
 public:
  Attribution(Recipe from, ComparedSide a, ComparedSide b)
      : start_(std::move(from)), a_(std::move(a)), b_(std::move(b)) {}

  OrderedJson run(std::vector<Change> left) {
    Recipe recipe = start_;
    ComparedFigures before = a_.figures;
    while (!left.empty()) {
      const auto next = first_valid(recipe, left);
      if (!next) {
        break;
      }
      Change& change = left[next->first];
      change.apply(recipe);
      add(change.name, next->second.figures - before, alone(change), next->second.kind);
      before = next->second.figures;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(next->first));
    }
    if (!left.empty()) {
      add_together(left, before);
    }
    OrderedJson out;
    out["changes"] = std::move(changes_);
    out["interaction"] =
        sum_alone_ ? figures_json(b_.figures - a_.figures - *sum_alone_) : OrderedJson(nullptr);
    return out;
  }

 private:
  // Of those left, the first with which the engine starts, and the startup with it. The last of
  // all leads to B itself.
  std::optional<std::pair<std::size_t, ComparedSide>> first_valid(
      const Recipe& recipe, const std::vector<Change>& left) const {
    if (left.size() == 1) {
      return std::pair{std::size_t{0}, b_};
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      Recipe changed = recipe;
      left[i].apply(changed);
      if (auto side = simulated(changed)) {
        return std::pair{i, std::move(*side)};
      }
    }
    return std::nullopt;
  }

  std::optional<ComparedFigures> alone(const Change& change) const {
    Recipe changed = start_;
    change.apply(changed);
    const auto side = simulated(changed);
    return side ? std::optional(side->figures - a_.figures) : std::nullopt;
  }

  // Changes of which the engine takes none without the others.
  void add_together(const std::vector<Change>& left, const ComparedFigures& before) {
    std::string names;
    for (const Change& change : left) {
      names += (names.empty() ? "" : ", ") + change.name;
    }
    add(names, b_.figures - before, std::nullopt, b_.kind);
  }

  void add(const std::string& name, const ComparedFigures& in_order,
           const std::optional<ComparedFigures>& alone, const std::string& kind) {
    OrderedJson entry;
    entry["change"] = name;
    entry["outcome"] = kind;
    entry["in_order"] = figures_json(in_order);
    entry["alone"] = alone ? figures_json(*alone) : OrderedJson(nullptr);
    entry["interaction"] = alone ? figures_json(in_order - *alone) : OrderedJson(nullptr);
    changes_.push_back(std::move(entry));
    sum_alone_ = sum_alone_ && alone ? std::optional(*sum_alone_ + *alone) : std::nullopt;
  }

  Recipe start_;
  ComparedSide a_;
  ComparedSide b_;
  OrderedJson changes_ = OrderedJson::array();
  // Of all changes so far; empty once one of them cannot stand alone.
  std::optional<ComparedFigures> sum_alone_ = nothing();

  static ComparedFigures nothing() {
    ComparedFigures figures;
    figures.kv_tokens = 0;
    return figures;
  }
};

}  // namespace

OrderedJson compare_json(const ComparedSide& a, const ComparedSide& b) {
  OrderedJson json = table_json(a, b);
  const bool alike = a.launch && b.launch && a.launch->engine == b.launch->engine;
  json["changes"] = alike ? named_changes(*a.launch, *b.launch) : OrderedJson(nullptr);
  json["interaction"] = nullptr;
  return json;
}

ComparedSide compared_side(const ComparedDeployment& deployment) {
  ComparedSide side =
      compared_side(Json(plan_json(start(deployment.deployment))), deployment.source);
  side.launch = deployment.deployment.common().launch;
  return side;
}

OrderedJson compare_json(const ComparedDeployment& a, const ComparedDeployment& b) {
  const ComparedSide side_a = compared_side(a);
  const ComparedSide side_b = compared_side(b);
  const EngineDeployment& from = a.deployment.common();
  const EngineDeployment& to = b.deployment.common();
  if (from.launch.engine != to.launch.engine) {
    return compare_json(side_a, side_b);
  }
  OrderedJson json = table_json(side_a, side_b);
  json.update(Attribution(recipe_of(from), side_a, side_b).run(changes_between(from, to)));
  return json;
}

}  // namespace oomcast
