// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/report.hpp"

namespace accelerate::launch {

Answer make_report(const Arguments& arguments) {
  CommandLine line("accelerate_report",
                   "Makes one page of HTML, which needs no other file, of what runs logged with the tracker jsonl:\n"
                   "configuration, curves, throughput.\n",
                   {"accelerate_report logs", "accelerate_report --output today.html logs/digits"});
  std::string folder, output;
  line.app().add_option("DIR", folder, "Folder that has metrics.jsonl in it or below.")->required();
  line.app().add_option("--output", output, "The page; else report.html in DIR.")->type_name("FILE");
  if (auto answer = line.parse(arguments)) return *answer;

  const auto files = tracking::read_logged_files(folder);
  if (output.empty()) output = std::filesystem::path(folder) / "report.html";
  tracking::AppendFile(output).replace(tracking::report_html(files));
  size_t runs = 0;
  for (const auto& file : files) runs += file.logs.runs.size();
  return {fmt::format("{}: {} run{}\n", output, runs, runs == 1 ? "" : "s")};
}

}  // namespace accelerate::launch
