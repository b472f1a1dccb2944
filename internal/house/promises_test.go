package house

import (
	"strings"
	"testing"
)

// readmePromises lists sentences of the README, each with a test that fails if the sentence is no
// longer true. Commands other than "go test" run on GPUs or in .ci/run.
var readmePromises = []struct{ quote, test string }{
	{
		"If a tensor lies elsewhere on one rank, they return wrong sums",
		"go test ./driver/host ./driver/nccl -run TestContract/mistakes/unchecked_buffers",
	},
	{
		"places tensors at the same offset on every rank",
		"go test . -run 'TestPlacementIsSameOnAllRanks|TestReuseUnderPressure'",
	},
	{
		"by rules that do not depend on addresses",
		"go test ./internal/alloc -run TestAddressOrderDiverges",
	},
	{
		"reports the first call or allocation that differs",
		"go test . -run 'TestDifferentCollectives|TestCheckFinds'",
	},
	{
		"bounds every wait for another rank",
		"go test . -run 'TestTimeoutNamesRank|TestErrorNamesKilledRank'",
	},
	{
		"bounds every wait for another rank",
		"go test ./internal/chaos -run 'TestPage|TestPageOnAGPU'",
	},
	{
		"four processes, sixteen all-reduces, all checked",
		"go run ./cmd/symmem verify --backend host",
	},
	{
		"Without `--backend`, `verify` uses the NVIDIA GPUs of the machine",
		"go test ./cmd/symmem/internal/doctor -run TestBackendIsChosen",
	},
	{
		"with NCCL 2.27.3 or later",
		"go test ./internal/nccl -run TestOlderVersionsLackFunctions",
	},
	{
		"PyTorch's caching allocator takes the one at the lowest *address*",
		"bench/gpu/torch/churn.py stock",
	},
	{
		"[show the bug, and how it is caught]",
		"go test ./cmd/symmem -run 'TestScripts/address|TestCheckLevels'",
	},
}

func TestReadmePromisesHaveTests(t *testing.T) {
	readme := strings.ReplaceAll(loadPages(t)["README.md"], "**", "")
	readme = strings.Join(strings.Fields(readme), " ")
	names := functionsOfTests(loadFiles(t))
	for _, p := range readmePromises {
		if !strings.Contains(readme, p.quote) {
			t.Errorf("the README does not contain %q", p.quote)
		}

		if m := goTest.FindStringSubmatch(p.test); m != nil {
			for _, unmatched := range unmatchedPatterns(m[1], names) {
				t.Errorf("%q: no test matches %s", p.quote, unmatched)
			}
		}
	}
}
