#include "sim/engines/trtllm/startup_rules.hpp"

#include "models/data.hpp"
#include "sim/engines/version_rows.hpp"

namespace oomcast::trtllm {

namespace {

StartupRules read_rules(const Version& version) {
  constexpr const char* kFile = "engines/trtllm/presets.json";
  const Json& file = models::embedded_json(kFile);
  Problems problems;
  const VersionRows read(file, kFile, version, problems);
  StartupRules rules;
  rules.tokens_per_block = read.integer("tokens_per_block");
  rules.profiles = read.boolean("profiles");
  rules.blocks_are_ceiled = read.boolean("blocks_are_ceiled");
  rules.estimator_splits_heads_unrounded = read.boolean("estimator_splits_heads_unrounded");
  rules.one_sided_exchange = read.boolean("one_sided_exchange");
  rules.windows_share_equally = read.boolean("windows_share_equally");
  rules.captures_graphs = read.choice<bool>("graph_steps", {{"none", false}, {"widening", true}});
  rules.torch = read.version("torch");
  rules.step_costs = read.step_costs();
  rules.modules = kMiB * read.measured("modules_mib", rules.provenance);
  problems.raise_if_any();
  return rules;
}

}  // namespace

StartupRules startup_rules_for(const Version& version) { return known_rules(version, read_rules); }

}  // namespace oomcast::trtllm
