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

// These tests cover Facts, which describe a machine and the environment of this process: GPUs,
// NCCL, variables, limits and so on. Most functions under test inspect one of these subjects.

// TestBackendIsChosenAsOpenDoes checks that the backend auto means nccl if there are GPUs and NCCL,
// and otherwise host. Another requested backend is chosen without conditions.
func TestBackendIsChosenAsOpenDoes(t *testing.T) {
	gpus := []GPU{{}} // a GPU of any kind
	for name, test := range map[string]struct {
		facts Facts // NCCL is available if Library.Error is empty
		want  string
	}{
		"GPUs and NCCL": {
			facts: Facts{RequestedBackend: "auto", GPUs: gpus},
			want:  "nccl",
		},
		"GPUs without NCCL": {
			facts: Facts{RequestedBackend: "auto", GPUs: gpus, Library: Library{Error: "no NCCL"}},
			want:  "host",
		},
		"NCCL without GPUs": {
			facts: Facts{RequestedBackend: "auto"},
			want:  "host",
		},
		"nccl was requested": {
			facts: Facts{RequestedBackend: "nccl"},
			want:  "nccl",
		},
		"host was requested": {
			facts: Facts{RequestedBackend: "host", GPUs: gpus},
			want:  "host",
		},
	} {
		test.facts.ChooseBackend()
		if got := test.facts.Backend; got != test.want {
			t.Errorf("%s: ChooseBackend selected %s, want %s", name, got, test.want)
		}
	}
}

// TestInspectVariables checks that variables are listed if their name begins with a prefix such as
// NCCL_. They come from the environment and from NCCL's configuration file, .nccl.conf.
func TestInspectVariables(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("NCCL_CONF_FILE", "")
	conf := filepath.Join(home, ".nccl.conf")
	lines := []string{
		"#NCCL_ALGO=TREE", // a comment
		"NCCL_WIN_ENABLE=0",
		"NCCL_DEBUG=INFO", // the environment overrides it
		"nothing",         // ignored, because there is no "="
	}
	text := strings.Join(lines, "\n") + "\n"
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
		{Name: "SYMMEM_TOKEN", Value: "(hidden)"}, // a token is secret
		{Name: "TORCH_NCCL_ASYNC_ERROR_HANDLING", Value: "1"},
	}
	got = withoutFile(got, "/etc/nccl.conf") // this machine may have this configuration file
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

// TestInspectLauncher inspects the variables with which a launcher describes rank 1 of 2. Here, the
// launcher is Slurm, in a pod of Kubernetes. Without a required variable, the result is an error.
func TestInspectLauncher(t *testing.T) {
	environment := map[string]string{
		"SLURM_STEP_ID":        "0",
		"SLURM_JOB_ID":         "7",
		"SLURM_PROCID":         "1",
		"SLURM_LOCALID":        "1",
		"SLURM_NTASKS":         "2",
		"SLURM_STEP_NUM_NODES": "1",
		"JOB_COMPLETION_INDEX": "1", // set by Kubernetes
	}
	lookup := func(name string) (string, bool) {
		value, isSet := environment[name]
		return value, isSet
	}
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

	const required = "SLURM_LOCALID"
	delete(environment, required)
	if got := InspectLauncher(lookup); !strings.Contains(got.Error, required) {
		t.Errorf("without %s: got %+v, want an error that names it", required, got)
	}
}

// TestInspectTuning inspects tuning tables. A table lists, for sizes of calls, the path that calls
// take. It comes from a file. If the file is optional and missing, there is a built-in table for
// some GPUs.
func TestInspectTuning(t *testing.T) {
	const gpu = "NVIDIA H200" // has a built-in table
	const ranks = 4
	const optional = false
	const required = true
	file := filepath.Join(t.TempDir(), "table.json")
	writeTable := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
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

	writeTable("{}")
	got = InspectTuning("nccl", gpu, ranks, file, optional)
	checkError("with an invalid file", got)

	writeTable(`{"version": 4, "about": "", "device": "D", "library": "L", "date": "", "source": "",
		"otherwise": "plain", "rules": [{"operation": "AllReduce", "ranks": 4, "machines": 1,
		"steps": [{"path": "window", "measured": []}]}]}`)
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

// TestInspectHostAndLimits inspects the machine that runs this test. It must have the system calls
// that symmem needs, and plausible limits.
func TestInspectHostAndLimits(t *testing.T) {
	h := InspectHost()
	if h.Cores < 1 || h.MemoryBytes < 1 || h.Kernel == "" {
		t.Errorf("InspectHost() = %+v, want cores, memory and a kernel", h)
	}

	if problems := h.MemfdError + h.FutexError + h.PidfdError + h.SocketError; problems != "" {
		t.Errorf("InspectHost() reports errors of system calls: %s", problems)
	}

	const unlimited = -1 // the smallest value of a limit
	l := InspectLimits()
	if l.LockedMemory < unlimited || l.AddressSpace < unlimited || l.OpenFiles == 0 {
		t.Errorf("InspectLimits() = %+v, want limits of -1 (unlimited) or more, and some open files", l)
	}
}

// TestModuleVersionPattern checks that the pattern finds the version of NVIDIA's kernel module in
// the text of /proc/driver/nvidia/version.
func TestModuleVersionPattern(t *testing.T) {
	for module, test := range map[string]struct {
		text string
		want string
	}{
		"proprietary": {
			text: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Wed\nGCC version:\n",
			want: "580.159.03",
		},
		"open": {
			text: "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n",
			want: "580.95.05",
		},
	} {
		matches := moduleVersionPattern.FindStringSubmatch(test.text)
		if matches == nil || matches[1] != test.want {
			t.Errorf("%s module: moduleVersionPattern matches %q in %q, want the version %s", module,
				matches, test.text, test.want)
		}
	}
}

// TestNewTrialSortsResultsByRank combines the results of a trial, in which 3 ranks make a few
// calls. Rank 1 has failed. The results of ranks 2 and 0 must be sorted. Those that only rank 0
// has become results of the trial.
func TestNewTrialSortsResultsByRank(t *testing.T) {
	const ranks = 3
	ofRank2 := RankResult{Rank: 2}
	ofRank0 := RankResult{
		RankZeroResults: &RankZeroResults{
			Source: "torchrun", Device: "D", IsLogRequested: true, LogProblem: "no log",
		},
	}
	errRank1 := errors.New("rank 1 reported nothing")
	trial := NewTrial(ranks, []RankResult{ofRank2, ofRank0}, errRank1)
	encoded, err := json.Marshal(trial.RankResults) // for the message
	if err != nil {
		t.Fatal(err)
	}

	if last := trial.RankResults[1].Rank; last != 2 {
		t.Errorf("the last result is that of rank %d, want 2; results: %s", last, encoded)
	}

	if trial.Device != "D" || !trial.IsLogRequested || trial.LogProblem != "no log" {
		t.Errorf("NewTrial = %+v, want the device and the log of rank 0", trial)
	}

	if trial.Error != errRank1.Error() {
		t.Errorf("Error = %q, want %q", trial.Error, errRank1)
	}

	trial = NewTrial(ranks, []RankResult{ofRank2}, nil)
	if trial.Device != "" || trial.Error != "" {
		t.Errorf("without rank 0 and without an error: NewTrial = %+v, want no device and no error",
			trial)
	}
}

// TestFormatBytes checks that sizes use the largest unit that fits, and have at most four digits.
// Sizes below 1 KiB are exact.
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
