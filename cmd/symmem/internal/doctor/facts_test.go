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
	gpus := []GPU{{}}
	for name, tt := range map[string]struct {
		facts Facts
		want  string
	}{
		"GPUs and NCCL": {Facts{RequestedBackend: "auto", GPUs: gpus}, "nccl"},
		"GPUs without NCCL": {
			Facts{RequestedBackend: "auto", GPUs: gpus, Library: Library{Error: "x"}}, "host",
		},
		"NCCL without GPUs":  {Facts{RequestedBackend: "auto"}, "host"},
		"nccl was requested": {Facts{RequestedBackend: "nccl"}, "nccl"},
		"host was requested": {Facts{RequestedBackend: "host", GPUs: gpus}, "host"},
	} {
		tt.facts.ChooseBackend()
		if got := tt.facts.Backend; got != tt.want {
			t.Errorf("%s: ChooseBackend selected %s, want %s", name, got, tt.want)
		}
	}
}

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

func withoutFile(all []Variable, file string) []Variable {
	var remaining []Variable
	for _, v := range all {
		if v.File != file {
			remaining = append(remaining, v)
		}
	}
	return remaining
}

func TestInspectLauncher(t *testing.T) {
	environment := map[string]string{
		"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "1",
		"SLURM_NTASKS": "2", "SLURM_STEP_NUM_NODES": "1", "JOB_COMPLETION_INDEX": "1",
	}
	lookup := func(name string) (string, bool) { v, ok := environment[name]; return v, ok }
	got := InspectLauncher(lookup)
	if got.Source != "Slurm" || got.Rank != 1 || got.Size != 2 || got.Index != "1" ||
		got.Address == "" || got.Error != "" {
		t.Errorf("with a Slurm job: got %+v, want rank 1 of 2 with index 1 and an address", got)
	}
	delete(environment, "SLURM_LOCALID")
	if got := InspectLauncher(lookup); !strings.Contains(got.Error, "SLURM_LOCALID") {
		t.Errorf("without SLURM_LOCALID: got %+v, want an error that names it", got)
	}
}

func TestInspectTuning(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table.json")
	const optional, required = false, true
	got := InspectTuning("nccl", "NVIDIA H200", 4, file, optional)
	if got.RuleCount == 0 || got.Error != "" || got.MeasuredWith != "NCCL 2.28.9" {
		t.Errorf("without a file: got %+v, want the built-in table", got)
	}
	got = InspectTuning("nccl", "NVIDIA H200", 4, file, required)
	if got.Error == "" || got.Name != "" {
		t.Errorf("with a required file missing: got %+v, want an error", got)
	}
	if err := os.WriteFile(file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = InspectTuning("nccl", "NVIDIA H200", 4, file, optional)
	if got.Error == "" {
		t.Errorf("with an invalid file: got %+v, want an error", got)
	}
	table := `{"version": 4, "about": "", "device": "D", "library": "L", "date": "", "source": "",
		"otherwise": "plain", "rules": [{"operation": "AllReduce", "ranks": 4, "machines": 1,
		"steps": [{"path": "window", "measured": []}]}]}`
	if err := os.WriteFile(file, []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	got = InspectTuning("nccl", "D", 4, file, required)
	if got.Error != "" || got.RuleCount != 1 || !strings.Contains(got.Name, file) ||
		got.MeasuredWith != "L" {
		t.Errorf("with a valid file: got %+v, want its table", got)
	}
}

func TestInspectHostAndLimits(t *testing.T) {
	h := InspectHost()
	if h.Cores < 1 || h.MemoryBytes < 1 || h.Kernel == "" ||
		h.MemfdError+h.FutexError+h.PidfdError+h.SocketError != "" {
		t.Errorf("InspectHost() = %+v, want a usable machine", h)
	}
	if l := InspectLimits(); l.OpenFiles == 0 || l.LockedMemory < -1 || l.AddressSpace < -1 {
		t.Errorf("InspectLimits() = %+v, want limits of at least -1", l)
	}
}

func TestModuleVersionPattern(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  Wed\nGCC version:\n": "580.159.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  R\n":         "580.95.05",
	} {
		matches := moduleVersionPattern.FindStringSubmatch(text)
		if matches == nil || matches[1] != want {
			t.Errorf("moduleVersionPattern matches %q in %q, want the version %s", matches, text, want)
		}
	}
}

func TestNewTrialSortsResultsByRank(t *testing.T) {
	ofRank2 := RankResult{Rank: 2}
	ofRank0 := RankResult{
		RankZeroResults: &RankZeroResults{
			Source: "torchrun", Device: "D", IsLogRequested: true, LogProblem: "t",
		},
	}
	trial := NewTrial(3, []RankResult{ofRank2, ofRank0}, errors.New("rank 1 reported nothing"))
	encoded, err := json.Marshal(trial.RankResults)
	if err != nil {
		t.Fatal(err)
	}
	if trial.Device != "D" || !trial.IsLogRequested || trial.LogProblem != "t" ||
		trial.RankResults[1].Rank != 2 ||
		trial.Error != "rank 1 reported nothing" {
		t.Errorf("NewTrial = %+v with the results %s, want the results of rank 0 first", trial, encoded)
	}
	trial = NewTrial(3, []RankResult{ofRank2}, nil)
	if trial.Device != "" || trial.Error != "" {
		t.Errorf("without rank 0 and without an error: NewTrial = %+v, want neither", trial)
	}
}

func TestFormatBytes(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 4 << 10: "4 KiB", 150754820096: "140.4 GiB", 3 << 40: "3 TiB",
	} {
		if got := formatBytes(bytes); got != want {
			t.Errorf("formatBytes(%d) = %q, want %q", bytes, got, want)
		}
	}
}
