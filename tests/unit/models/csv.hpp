// Rows of a small carried CSV: comment lines start with #, the first other line names the columns.
// No quoted fields.
#pragma once

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace oomcast::models {

inline std::vector<std::map<std::string, std::string>> read_csv(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> columns;
  std::vector<std::map<std::string, std::string>> rows;
  std::string line;
  while (std::getline(in, line)) {
    if (line.empty() || line.front() == '#') {
      continue;
    }
    std::vector<std::string> cells;
    std::istringstream cell_stream(line + ",");
    for (std::string cell; std::getline(cell_stream, cell, ',');) {
      cells.push_back(cell);
    }
    if (columns.empty()) {
      columns = cells;
      continue;
    }
    auto& row = rows.emplace_back();
    for (std::size_t i = 0; i < columns.size() && i < cells.size(); ++i) {
      row[columns[i]] = cells[i];
    }
  }
  return rows;
}

}  // namespace oomcast::models
