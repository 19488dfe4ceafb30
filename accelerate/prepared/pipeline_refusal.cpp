// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/pipeline_refusal.hpp"

#include "accelerate/pipeline/pipeline.hpp"

namespace accelerate::prepared {

void refuse_pipeline(const torch::nn::Module& module, const RankContext& place) {
  if (dynamic_cast<const nn::Pipeline*>(&module) == nullptr) return;
  base::fail(ErrorKind::usage, place, "prepare",
             "a Pipeline is not prepared, because its ranks have different parameters; call its train_step() and step "
             "a plain optimizer of its parameters");
}

}  // namespace accelerate::prepared
