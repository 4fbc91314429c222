// Pages that open from disk: one file with its styles, scripts, charts and data inside, and nothing
// from a network.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sim/core/json.hpp"

namespace oomcast::report {

// One self-contained page.
//   title   text of the tab; escaped here
//   body    name of a file of sim/report/html/ with the page's skeleton, e.g. "report.html"
//   script  name of the script that fills it. It finds dygraphs (`Dygraph`, with `synchronize`),
//   the
//           helpers of common.js and charts.js, and `oomcast.data`: what was given as `data`
//   data    the text of any JSON, as data_text() gives it; it cannot leave its place in the page
std::string page(std::string_view title, std::string_view body, std::string_view script,
                 std::string_view data);
// What is no UTF-8 is replaced.
std::string data_text(const OrderedJson& data);

// & < > " ' as entities, for text and for quoted attributes.
std::string escape_html(std::string_view text);

namespace detail {
// Generated at build time by oomcast_embed().
const std::map<std::string_view, std::string_view>& compiled_in_files();
}  // namespace detail

}  // namespace oomcast::report
