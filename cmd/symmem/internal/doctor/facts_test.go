package doctor

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBackendIsChosenAsOpenDoes(t *testing.T) {
	gpus := []GPU{{}} // a GPU of any kind
	for name, tt := range map[string]struct {
		facts Facts
		want  string
	}{
		"GPUs and NCCL": {
			Facts{RequestedBackend: "auto", GPUs: gpus},
			"nccl",
		},
		"GPUs without NCCL": {
			Facts{RequestedBackend: "auto", GPUs: gpus, Library: Library{Error: "no NCCL"}},
			"host",
		},
		"NCCL without GPUs": {
			Facts{RequestedBackend: "auto"},
			"host",
		},
		"nccl was requested": {
			Facts{RequestedBackend: "nccl"},
			"nccl",
		},
		"host was requested": {
			Facts{RequestedBackend: "host", GPUs: gpus},
			"host",
		},
	} {
		tt.facts.ChooseBackend()
		if got := tt.facts.Backend; got != tt.want {
			t.Errorf("%s: ChooseBackend selected %s, want %s", name, got, tt.want)
		}
	}
}

// TestInspectVariables checks which variables of the environment and of NCCL's configuration file
// are listed. PATH and MYNCCL_X are irrelevant. The value of a token is hidden.
func TestInspectVariables(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("NCCL_CONF_FILE", "")
	conf := filepath.Join(home, ".nccl.conf")
	// The comment and the line without = are ignored. The environment overrides NCCL_DEBUG.
	text := "#NCCL_ALGO=TREE\nNCCL_WIN_ENABLE=0\nNCCL_DEBUG=INFO\nnothing\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	got := InspectVariables([]string{
		"PATH=/bin", "SYMMEM_TOKEN=hush", "NCCL_DEBUG=WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
		"CUDA_VISIBLE_DEVICES=", "MYNCCL_X=1",
	})
	want := []Variable{
		{Name: "CUDA_VISIBLE_DEVICES"},
		{Name: "NCCL_DEBUG", Value: "WARN"},
		{Name: "NCCL_WIN_ENABLE", Value: "0", File: conf},
		{Name: "SYMMEM_TOKEN", Value: "(hidden)"},
		{Name: "TORCH_NCCL_ASYNC_ERROR_HANDLING", Value: "1"},
	}
	got = withoutFile(got, "/etc/nccl.conf") // a file that this machine may have
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the variables differ (-want +got):\n%s", diff)
	}
}

// withoutFile returns the variables that were not read from a certain file.
func withoutFile(all []Variable, file string) []Variable {
	var remaining []Variable
	for _, v := range all {
		if v.File != file {
			remaining = append(remaining, v)
		}
	}

	return remaining
}

// TestInspectLauncher describes the environment that Slurm and Kubernetes give to rank 1 of 2,
// first with and then without a variable that is required.
func TestInspectLauncher(t *testing.T) {
	environment := map[string]string{
		"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "1",
		"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1", "JOB_COMPLETION_INDEX": "1",
	}
	lookup := func(name string) (string, bool) { v, ok := environment[name]; return v, ok }
	got := InspectLauncher(lookup)
	if got.Source != "Slurm" || got.Error != "" {
		t.Errorf("got source %q, error %q; want Slurm and none", got.Source, got.Error)
	}

	if got.Rank != 1 || got.Size != 2 || got.Address == "" {
		t.Errorf("got rank %d of %d, address %q; want rank 1 of 2 and an address", got.Rank, got.Size,
			got.Address)
	}

	if want := environment["JOB_COMPLETION_INDEX"]; got.Index != want {
		t.Errorf("got index %q, want %q", got.Index, want)
	}

	delete(environment, "SLURM_LOCALID")
	if got := InspectLauncher(lookup); !strings.Contains(got.Error, "SLURM_LOCALID") {
		t.Errorf("without SLURM_LOCALID: got %+v, want an error that names it", got)
	}
}

// TestInspectTuning describes the tuning table of a machine with 4 ranks. A table says which path
// calls take. It comes from a file or, if the file is optional and missing, from the program.
func TestInspectTuning(t *testing.T) {
	const gpu, ranks = "NVIDIA H200", 4 // the program has a table for this GPU
	const optional, required = false, true
	file := filepath.Join(t.TempDir(), "table.json")
	checkError := func(situation string, got Tuning) {
		t.Helper()
		if got.Error == "" || got.Name != "" {
			t.Errorf("%s: got %+v, want an error and no table", situation, got)
		}
	}
	got := InspectTuning("nccl", gpu, ranks, file, optional)
	if got.RuleCount == 0 || got.Error != "" || got.MeasuredWith != "NCCL 2.28.9" {
		t.Errorf("without a file: got %+v, want the built-in table", got)
	}

	got = InspectTuning("nccl", gpu, ranks, file, required)
	checkError("with a required file missing", got)
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}

	got = InspectTuning("nccl", gpu, ranks, file, optional)
	checkError("with an invalid file", got)
	table := `{"version": 4, "about": "", "device": "D", "library": "L", "date": "", "source": "",
		"otherwise": "plain", "rules": [{"operation": "AllReduce", "ranks": 4, "machines": 1,
		"steps": [{"path": "window", "measured": []}]}]}`
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}

	got = InspectTuning("nccl", "D", ranks, file, required)
	if got.Error != "" || !strings.Contains(got.Name, file) {
		t.Errorf("with a valid file: got table %q, error %q; want the file's name and no error", got.Name,
			got.Error)
	}

	if got.RuleCount != 1 || got.MeasuredWith != "L" {
		t.Errorf("with a valid file: got %d rules, measured with %q; want 1 and L", got.RuleCount,
			got.MeasuredWith)
	}
}

// TestInspectHostAndLimits inspects the machine that runs the tests, on which symmem works.
func TestInspectHostAndLimits(t *testing.T) {
	h := InspectHost()
	if h.Cores < 1 || h.MemoryBytes < 1 || h.Kernel == "" {
		t.Errorf("InspectHost() = %+v, want cores, memory and a kernel", h)
	}

	if problems := h.MemfdError + h.FutexError + h.PidfdError + h.SocketError; problems != "" {
		t.Errorf("InspectHost() reports errors of system calls: %s", problems)
	}

	const unlimited = -1
	l := InspectLimits()
	if l.LockedMemory < unlimited || l.AddressSpace < unlimited || l.OpenFiles == 0 {
		t.Errorf("InspectLimits() = %+v, want each limit to be -1 or more, and some open files", l)
	}
}

// TestModuleVersionPattern matches /proc/driver/nvidia/version of both kinds of kernel module.
func TestModuleVersionPattern(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{
			"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Wed\nGCC version:\n",
			"580.159.03",
		},
		{
			"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n",
			"580.95.05",
		},
	} {
		matches := moduleVersionPattern.FindStringSubmatch(c.text)
		if matches == nil || matches[1] != c.want {
			t.Errorf("moduleVersionPattern matches %q in %q, want the version %s", matches, c.text,
				c.want)
		}
	}
}

// TestNewTrialSortsResultsByRank builds a trial of 3 ranks from the results of ranks 2 and 0. The
// trial also has the results that only rank 0 measures.
func TestNewTrialSortsResultsByRank(t *testing.T) {
	ofRank2 := RankResult{Rank: 2}
	ofRank0 := RankResult{
		RankZeroResults: &RankZeroResults{
			Source: "torchrun", Device: "D", IsLogRequested: true, LogProblem: "no log",
		},
	}
	trial := NewTrial(3, []RankResult{ofRank2, ofRank0}, errors.New("rank 1 reported nothing"))
	encoded, err := json.Marshal(trial.RankResults)
	if err != nil {
		t.Fatal(err)
	}

	if last := trial.RankResults[1].Rank; last != 2 {
		t.Errorf("the last result is that of rank %d, want 2; results: %s", last, encoded)
	}

	if trial.Device != "D" || !trial.IsLogRequested || trial.LogProblem != "no log" {
		t.Errorf("NewTrial = %+v, want the device and the log of rank 0", trial)
	}

	if trial.Error != "rank 1 reported nothing" {
		t.Errorf("Error = %q, want that of rank 1", trial.Error)
	}

	trial = NewTrial(3, []RankResult{ofRank2}, nil)
	if trial.Device != "" || trial.Error != "" {
		t.Errorf("without rank 0 and without an error: NewTrial = %+v, want no device and no error",
			trial)
	}
}

func TestFormatBytes(t *testing.T) {
	for bytes, want := range map[int64]string{
		0:               "0 B",
		1023:            "1023 B",
		4 << 10:         "4 KiB",
		150_754_820_096: "140.4 GiB",
		3 << 40:         "3 TiB",
	} {
		if got := formatBytes(bytes); got != want {
			t.Errorf("formatBytes(%d) = %q, want %q", bytes, got, want)
		}
	}
}
