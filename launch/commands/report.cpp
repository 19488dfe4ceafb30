// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/report.hpp"
#include "launch/commands/text.hpp"

namespace accelerate::launch {

Answer make_report(const Arguments& arguments) {
  CommandLine line(
      "accelerate_report",
      "Makes one page of HTML, which needs no other file, of what runs logged with the tracker jsonl\n"
      "(configuration, curves, throughput) and of what profile() left with an output_trace_dir (where each\n"
      "rank's time went).\n",
      {"accelerate_report logs", "accelerate_report --output today.html logs/digits"});
  std::string folder, output;
  line.app()
      .add_option("DIR", folder, "Folder that has metrics.jsonl or profile_summary.json in it or below.")
      ->required();
  line.app().add_option("--output", output, "The page; else report.html in DIR.")->type_name("FILE");
  if (auto answer = line.parse(arguments)) return *answer;

  const auto logged = tracking::read_logged_folder(folder);
  if (output.empty()) output = std::filesystem::path(folder) / "report.html";
  tracking::AppendFile(output).replace(tracking::report_html(logged));
  size_t runs = 0;
  for (const auto& file : logged.files) runs += file.logs.runs.size();
  return {fmt::format("{}: {}, {}\n", output, counted(runs, "run"), counted(logged.profiles.size(), "profile"))};
}

}  // namespace accelerate::launch
