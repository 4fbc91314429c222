#include <filesystem>
#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/run/compare.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options = deployment_options();
  options.add_options()("side", po::value<std::vector<std::string>>()->value_name("FILE"),
                        "launch line, @file, run folder, record.json or plan.json (two of them)")(
      "gpu-b", po::value<std::string>()->value_name("GPU"), "card of B, where it is another");
  return options;
}

bool is_launch(const std::string& side) {
  std::error_code error;
  return side.starts_with("@") ||
         (side.find(' ') != std::string::npos && !std::filesystem::exists(side, error));
}

void refuse_one_card_figures_for_two(const po::variables_map& values) {
  Problems problems;
  for (const char* name : {"gpu-total", "free-at-start", "other-gpu-use", "calibration"}) {
    if (values.count(name) != 0) {
      problems.add({kCommandLine, std::string("--") + name, "", "one card for both sides",
                    "leave out --gpu-b, or this"});
    }
  }
  problems.raise_if_any();
}

OrderedJson compared(const po::variables_map& values, const std::vector<std::string>& sides) {
  const bool other_card = values.count("gpu-b") != 0;
  if (other_card) {
    refuse_one_card_figures_for_two(values);
  }
  Problems problems;
  std::vector<ComparedDeployment> deployments;
  std::vector<ComparedSide> read;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    try {
      if (is_launch(sides[i])) {
        Problems of_line;
        const char* gpu = i == 1 && other_card ? "gpu-b" : "gpu";
        deployments.push_back(
            {sides[i], resolve_deployment(values, sides[i], gpu, of_line).deployment});
        read.push_back(compared_side(deployments.back()));
      } else {
        read.push_back(read_compared_side(sides[i]));
      }
    } catch (const ConfigError& error) {
      problems.take(error);
    }
  }
  problems.raise_if_any();
  return deployments.size() == 2 ? compare_json(deployments[0], deployments[1])
                                 : compare_json(read[0], read[1]);
}

int run(const po::variables_map& values) {
  return run_compare(values, values.count("side") == 0
                                 ? std::vector<std::string>{}
                                 : values["side"].as<std::vector<std::string>>());
}

}  // namespace

int run_compare(const po::variables_map& values, std::vector<std::string> sides) {
  if (values.count("launch") != 0) {
    sides.insert(sides.begin(), values["launch"].as<std::string>());
  }
  if (sides.size() != 2) {
    throw ConfigError(Problem{kCommandLine, "compare", std::to_string(sides.size()) + " given",
                              "two launch lines, @files, run folders, record.json or plan.json",
                              "quote a launch line as one word"});
  }
  const OrderedJson json = compared(values, sides);
  std::cout << (values["json"].as<bool>() ? json.dump(2) + "\n" : compare_text(json));
  return json.at("b").at("outcome") == "served" ? kFits : kDoesNotFit;
}

Command compare_command() {
  return {
      .name = "compare",
      .purpose = "two launch lines or runs: what differs in bytes, and which flag does it",
      .synopsis = "oomcast compare A B [--gpu GPU] [OPTION...]",
      .about =
          "What differs between two launch lines, @files, run folders, record.json or plan.json,\n"
          "by class and in KV tokens. Between two launch lines every differing flag is applied in\n"
          "turn and simulated, so that each has its share; options hold for both sides. The exit\n"
          "code is that of B.",
      .examples = {{"What two flags do",
                    "oomcast compare \"vllm serve Qwen/Qwen3-8B\" \"vllm serve Qwen/Qwen3-8B "
                    "--kv-cache-dtype fp8 --max-num-batched-tokens 16384\" --gpu H100-80GB"},
                   {"The same launch line on another card",
                    "oomcast compare \"vllm serve Qwen/Qwen3-8B\" \"vllm serve Qwen/Qwen3-8B\" "
                    "--gpu H100-80GB --gpu-b H200"},
                   {"Two runs", "oomcast compare results/a results/b"}},
      .options = options,
      .word = "side",
      .most_words = -1,
      .run = run};
}

}  // namespace oomcast::cli
