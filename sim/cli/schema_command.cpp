#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/report/schemas.hpp"

namespace oomcast::cli {
namespace {

po::options_description options() {
  po::options_description options("Options");
  options.add_options()("name", po::value<std::string>()->value_name("SCHEMA"),
                        "the schema (see: oomcast list schemas)")("help,h", po::bool_switch(),
                                                                  "show this help");
  return options;
}

int run(const po::variables_map& values) {
  std::cout << schemas::text(values.count("name") == 0 ? "" : values["name"].as<std::string>());
  return kFits;
}

}  // namespace

Command schema_command() {
  return {.name = "schema",
          .purpose = "the JSON Schema of an output",
          .synopsis = "oomcast schema NAME",
          .about =
              "Prints the JSON Schema (draft 2020-12) of one kind of output. Schemas that refer\n"
              "to each other do so by $id, urn:oomcast:NAME:1.",
          .examples = {{"Of plan --json", "oomcast schema plan > plan.schema.json"}},
          .options = options,
          .word = "name",
          .most_words = 1,
          .run = run};
}

}  // namespace oomcast::cli
