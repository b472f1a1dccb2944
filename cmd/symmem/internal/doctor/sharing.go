package doctor

import (
	"fmt"

	"symmem/internal/mps"
	"symmem/internal/nccl"
)

// SharingVariable lets ranks share a GPU if it is 1, as NCCL interprets it.
const SharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE"

// sharing is the first version of NCCL that lets ranks share a GPU, 2.30.
const sharing = 23000

// Sharing describes whether several ranks can use one GPU.
type Sharing struct {
	// Missing is the reason why they cannot, or empty.
	Missing string `json:"missing,omitempty"`
	// Service reports whether a daemon of NVIDIA's Multi-Process Service is running. Program is the
	// file that starts one, or empty.
	Service bool   `json:"mps_runs"`
	Program string `json:"mps,omitempty"`
}

// LookAtSharing checks the requirements of ranks that share GPUs. A nil library stands for one
// that the ranks choose.
func LookAtSharing(gpus []GPU, library *Library, getenv func(string) string) Sharing {
	s := Sharing{Service: mps.Running(getenv)}
	if path, err := mps.Find(); err == nil {
		s.Program = path
	}
	s.Missing = s.missing(gpus, library, getenv)
	return s
}

// missing returns the reason why ranks cannot share these GPUs, or "".
func (s *Sharing) missing(gpus []GPU, library *Library, getenv func(string) string) string {
	switch value := getenv(SharingVariable); {
	case len(gpus) == 0:
		return "there is no GPU"
	case value != "" && value != "1":
		return fmt.Sprintf("%s=%s forbids it", SharingVariable, value)
	case library != nil && library.Error != "":
		return library.Error
	case library != nil && library.Version < sharing:
		return fmt.Sprintf("NCCL %s does not let them, %s is the first that does", library.Text,
			nccl.VersionText(sharing))
	}
	for i := range gpus {
		g := &gpus[i]
		switch {
		case g.Prohibited:
			return fmt.Sprintf("the compute mode of GPU %d is prohibited (nvidia-smi -c DEFAULT)", g.Ordinal)
		case g.Exclusive && !s.Service && s.Program == "":
			return fmt.Sprintf("the compute mode of GPU %d is exclusive to a process, and there is no "+
				"nvidia-cuda-mps-control (nvidia-smi -c DEFAULT)", g.Ordinal)
		}
	}
	return ""
}

// judgeSharing adds only remarks, since most programs have a GPU for each rank.
func judgeSharing(f *Facts, s *Section) {
	sharing := &f.Sharing
	switch {
	case len(f.GPUs) == 0:
	case sharing.Missing != "":
		s.ok("ranks cannot share a GPU: %s", sharing.Missing)
	case sharing.Service:
		s.ok("ranks can share a GPU, side by side: the Multi-Process Service runs")
	case sharing.Program != "":
		s.ok("ranks can share a GPU, side by side: symmem starts %s", sharing.Program)
	default:
		s.ok("ranks can share a GPU, in turns: there is no nvidia-cuda-mps-control")
	}
}
