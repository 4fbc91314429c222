#include "sim/cli/cluster_options.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/cluster/cluster_json.hpp"
#include "sim/cluster/pairing.hpp"
#include "sim/run/serving_engine.hpp"

namespace oomcast::cli {
namespace {

constexpr const char* kCommandLine = "command line";
constexpr std::int64_t kMostServers = 1024;
// A rack of 72 is the largest node there is.
constexpr std::int64_t kMostCards = 72;

std::int64_t count_option(const po::variables_map& values, const char* name, std::int64_t fallback,
                          std::int64_t most, Problems& problems) {
  if (values.count(name) == 0) {
    return fallback;
  }
  const auto value = values[name].as<std::int64_t>();
  if (value < 1 || value > most) {
    problems.add({kCommandLine, fmt::format("--{}", name), std::to_string(value),
                  fmt::format("from 1 to {}", most), ""});
    return fallback;
  }
  return value;
}

// Problems of a side as its user wrote it; of options that both sides share, once.
void take_of_side(const std::vector<Problem>& found, const char* role, const char* gpu,
                  Problems& problems) {
  for (Problem problem : found) {
    if (problem.source == "launch line") {
      problem.place = problem.place.empty() ? fmt::format("--{}", role)
                                            : fmt::format("--{}: {}", role, problem.place);
    } else if (problem.place == "--gpu") {
      problem.place = fmt::format("--{}", gpu);
    }
    const auto same = [&](const Problem& other) { return to_string(other) == to_string(problem); };
    if (std::none_of(problems.found().begin(), problems.found().end(), same)) {
      problems.add(std::move(problem));
    }
  }
}

// One side's deployment; what is wrong with it joins the problems.
std::optional<DeploymentChoice> side(const po::variables_map& values, const char* role,
                                     const char* gpu, Problems& problems) {
  if (values.count(role) == 0) {
    problems.add({kCommandLine, fmt::format("--{}", role), "",
                  fmt::format("the launch line of the {} servers", role),
                  "--prefill and --decode go together"});
    return std::nullopt;
  }
  try {
    Problems own;
    DeploymentChoice choice = resolve_deployment(values, values[role].as<std::string>(), gpu, own);
    check_member(choice.deployment, Detail::kClasses, own);
    take_of_side(own.found(), role, gpu, problems);
    return choice;
  } catch (const ConfigError& error) {
    take_of_side(error.problems(), role, gpu, problems);
    return std::nullopt;
  }
}

void refuse_alone(const po::variables_map& values, Problems& problems) {
  if (values.count("launch") != 0) {
    problems.add({kCommandLine, "--launch", "", "either --launch, or --prefill and --decode", ""});
  }
  if (values["detail"].as<std::string>() != "classes") {
    problems.add({kCommandLine, "--detail", values["detail"].as<std::string>(),
                  "classes for --prefill and --decode",
                  "servers of a cluster are followed by class"});
  }
}

cluster::FabricOptions fabric(const po::variables_map& values, Problems& problems) {
  cluster::FabricOptions fabric;
  try {
    fabric.link = models::find_link(values["interconnect"].as<std::string>());
  } catch (const ConfigError& error) {
    problems.take(error);
  }
  fabric.cards_per_node =
      count_option(values, "cards-per-node", fabric.cards_per_node, kMostCards, problems);
  fabric.nics_per_node =
      count_option(values, "nics-per-node", fabric.cards_per_node, kMostCards, problems);
  return fabric;
}

// NVLink and PCIe end at the node.
void check_reach(const cluster::FabricOptions& fabric, std::int64_t all_cards, Problems& problems) {
  if (fabric.link.kind != models::LinkSpec::Kind::kNic && all_cards > fabric.cards_per_node) {
    problems.add({kCommandLine, "--interconnect", fabric.link.name,
                  "a NIC between nodes, e.g. ib-ndr",
                  fmt::format("{} cards do not stand in a node of {} (--cards-per-node)", all_cards,
                              fabric.cards_per_node)});
  }
}

}  // namespace

po::options_description cluster_options() {
  po::options_description options("Prefill and decode servers");
  const auto text = [](const char* name) { return po::value<std::string>()->value_name(name); };
  const auto count = [] { return po::value<std::int64_t>()->value_name("N"); };
  options.add_options()("prefill", text("LINE"),
                        "launch line of the prefill servers, or @file; with --decode, instead of "
                        "--launch")("decode", text("LINE"), "launch line of the decode servers")(
      "prefill-replicas", count(), "how many prefill servers there are; default: 1")(
      "decode-replicas", count(), "how many decode servers there are; default: 1")(
      "decode-gpu", text("GPU"), "card of the decode servers; default: that of --gpu")(
      "interconnect", text("LINK")->default_value("ib-ndr"),
      "what KV travels on (see: oomcast list links)")("cards-per-node", count(),
                                                      "cards that stand in one node; default: 8")(
      "nics-per-node", count(), "NICs that the cards of a node share; default: one a card")(
      "router", text("round-robin|least-loaded")->default_value("least-loaded"),
      "how requests find their servers")(
      "inject", po::value<std::vector<std::string>>()->composing()->value_name("FAULT"),
      "\"kill prefill 0 at 12s\", \"drop decode 1 at 500ms\", \"slow prefill 0 to 10% at 3s for "
      "20s\" (repeatable)");
  return options;
}

bool wants_cluster(const po::variables_map& values) {
  return values.count("prefill") != 0 || values.count("decode") != 0;
}

void refuse_cluster_options(const po::variables_map& values) {
  Problems problems;
  const po::options_description known = cluster_options();
  for (const auto& option : known.options()) {
    const auto& name = option->long_name();
    if (values.count(name) != 0 && !values[name].defaulted()) {
      problems.add({kCommandLine, fmt::format("--{}", name), "",
                    "--prefill LINE and --decode LINE beside it",
                    "one server has nobody to send KV to"});
    }
  }
  problems.raise_if_any();
}

ClusterChoice cluster_choice(const po::variables_map& values) {
  Problems problems;
  refuse_alone(values, problems);
  const auto prefill = side(values, "prefill", "gpu", problems);
  const auto decode =
      side(values, "decode", values.count("decode-gpu") != 0 ? "decode-gpu" : "gpu", problems);
  const cluster::FabricOptions links = fabric(values, problems);
  const std::int64_t prefills = count_option(values, "prefill-replicas", 1, kMostServers, problems);
  const std::int64_t decodes = count_option(values, "decode-replicas", 1, kMostServers, problems);
  if (prefill && decode) {
    cluster::check_pair(prefill->deployment, decode->deployment, links.link, links.cards_per_node,
                        problems);
    check_reach(links,
                prefills * cluster::cards(prefill->deployment.common()) +
                    decodes * cluster::cards(decode->deployment.common()),
                problems);
  }
  std::vector<cluster::Fault> faults;
  if (values.count("inject") != 0) {
    const cluster::PoolSizes sizes{static_cast<std::size_t>(prefills),
                                   static_cast<std::size_t>(decodes)};
    for (const std::string& text : values["inject"].as<std::vector<std::string>>()) {
      if (auto fault = cluster::parse_fault(text, sizes, problems)) {
        faults.push_back(std::move(*fault));
      }
    }
  }
  problems.raise_if_any();
  ClusterChoice choice{{{make_plan(prefill->deployment), prefills},
                        {make_plan(decode->deployment), decodes},
                        links,
                        *cluster::route_policy_of(values["router"].as<std::string>()),
                        std::move(faults),
                        cluster::wire_token_bytes(decode->deployment)},
                       step_times_of(*prefill),
                       step_times_of(*decode)};
  choice.setup.prefill.step_times = choice.prefill_times.get();
  choice.setup.decode.step_times = choice.decode_times.get();
  return choice;
}

}  // namespace oomcast::cli
