#include <filesystem>
#include <iostream>

#include "sim/cli/command.hpp"
#include "sim/core/atomic_output.hpp"
#include "sim/report/finished_run.hpp"
#include "sim/report/report_page.hpp"

namespace oomcast::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "oomcast report RECORD [--format html] [--compare RECORD] [--out FILE-or-DIR]\n"
    "  A finished replay, named by its folder or record.json, as something to look at.\n"
    "  oomcast report results/RUN --out report.html\n"
    "  oomcast report results/A --compare results/B --out compared.html\n";

}  // namespace

int run_report(const Arguments& arguments) {
  po::options_description options("Report");
  options.add_options()("record", po::value<std::string>(), "folder of a replay, or its record.json")(
      "format", po::value<std::string>()->default_value("html"), "html")(
      "compare", po::value<std::string>(), "a second run: one page with both and what differs")(
      "out", po::value<std::string>(), "file or folder to write")("help,h", po::bool_switch(),
                                                                 "show this help");
  po::positional_options_description positional;
  positional.add("record", 1);
  po::variables_map values;
  if (!parse(arguments, options, kUsage, values, positional)) {
    return kFits;
  }
  const report::FinishedRun run = report::read_run(values["record"].as<std::string>());
  write_file_atomically(values["out"].as<std::string>(), values.count("compare") ? report::comparison_page(run, report::read_run(values["compare"].as<std::string>())) : report::report_page(run));
  return run.outcome.fits ? kFits : kDoesNotFit;
}

}  // namespace oomcast::cli
