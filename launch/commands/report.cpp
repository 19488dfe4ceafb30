// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/report.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "accelerate/tracking/append_file.hpp"
#include "accelerate/tracking/report.hpp"
#include "launch/commands/text.hpp"

namespace accelerate::launch {

CommandResult make_report(const Arguments& arguments) {
  CommandLine line("accelerate_report",
                   "Makes one self-contained page of HTML from the logs of the tracker jsonl (configuration, curves,\n"
                   "throughput) and the files of profile() with an output_trace_dir (the time of each rank).\n",
                   {"accelerate_report logs", "accelerate_report --output today.html logs/digits"});
  std::string folder, output;
  line.app()
      .add_option("DIR", folder, "Folder that contains metrics.jsonl or profile_summary.json, also in subfolders.")
      ->required();
  line.app().add_option("--output", output, "Output file (default report.html in DIR).")->type_name("FILE");
  if (auto answer = line.parse(arguments)) return *answer;

  const auto logged = tracking::read_logged_folder(folder);
  if (output.empty()) output = std::filesystem::path(folder) / "report.html";
  tracking::AppendFile(output).replace(tracking::report_html(logged));
  size_t runs = 0;
  for (const auto& file : logged.files) runs += file.logs.runs.size();
  return {fmt::format("{}: {}, {}\n", output, counted(runs, "run"), counted(logged.profiles.size(), "profile"))};
}

}  // namespace accelerate::launch
