// SPDX-License-Identifier: Apache-2.0
// docs/reference/exit_codes.md: the texts of every row are in a test that the row names.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

const fs::path top = TEST_SOURCE_DIR;

std::string contents(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Texts split(const std::string& text, const std::string& by) {
  const std::regex regex(by);
  return {std::sregex_token_iterator(text.begin(), text.end(), regex, -1), {}};
}

/// The cells of each row, without the two lines of the head.
std::vector<Texts> rows() {
  const std::string readme = contents(top / "docs/reference/exit_codes.md");
  const auto begin = readme.find("## Exit codes\n|");
  REQUIRE(begin != std::string::npos);
  const auto lines = split(readme.substr(begin, readme.find("\n\n", begin) - begin), "\n");
  std::vector<Texts> all;
  for (size_t i = 3; i < lines.size(); ++i) all.push_back(split(lines[i].substr(2), " \\|( |$)"));
  return all;
}

/// Source of a test with adjacent string literals joined.
std::string source_of(const std::string& test) {
  for (const auto& entry : fs::recursive_directory_iterator(top / "tests/launch")) {
    if (entry.path().filename() == test + ".cpp") {
      return std::regex_replace(contents(entry.path()), std::regex("\"\\s*\n\\s*\""), "");
    }
  }
  return "";
}

/// The longest part of each `...` literal without numbers and hosts, which tests choose themselves.
Texts longest_parts(const std::string& cell) {
  const std::regex quoted("`([^`]+)`");
  Texts words;
  for (std::sregex_iterator each(cell.begin(), cell.end(), quoted), end; each != end; ++each) {
    const auto parts = split((*each)[1], "[0-9][0-9.:,-]*|gpu-[ab]|\\.\\.\\.|\\bhost\\b|\\bx ");
    words.push_back(*std::max_element(parts.begin(), parts.end(),
                                      [](const auto& one, const auto& other) { return one.size() < other.size(); }));
  }
  return words;
}

}  // namespace

TEST_CASE("the texts of every row of the exit code table are in the tests that the row names") {
  const auto all = rows();
  CHECK(all.size() >= 20);
  for (const auto& cells : all) {
    REQUIRE(cells.size() == 4);
    const std::string row = cells[0] + " | " + cells[2];
    CAPTURE(row);
    std::string sources;
    for (const auto& test : split(cells[3], ", ")) {
      const auto source = source_of(test);
      CAPTURE(test);
      CHECK(source != "");
      sources += source;
    }
    for (const auto& words : longest_parts(cells[2])) {
      CAPTURE(words);
      CHECK(sources.find(words) != std::string::npos);
    }
  }
}
