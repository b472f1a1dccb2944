package doctor

import (
	"cmp"
	"fmt"

	"symmem/internal/mps"
	"symmem/internal/nccl"
)

// SharingVariable is an environment variable of NCCL. The value 1 allows ranks to share a GPU.
const SharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE"

// minSharingVersion is the first version of NCCL that lets ranks share a GPU.
const minSharingVersion = 23000 // 2.30

// GPUSharing describes whether several ranks (processes) can use one GPU. Their kernels run in
// turns, or concurrently if NVIDIA's Multi-Process Service (MPS) is running.
type GPUSharing struct {
	Obstacle         string `json:"missing,omitempty"` // why ranks cannot share a GPU, or empty
	IsServiceRunning bool   `json:"mps_runs"`          // the MPS daemon is running
	ServiceProgram   string `json:"mps,omitempty"`     // path of the MPS daemon, or empty
}

// InspectSharing checks whether ranks can share the GPUs. It does not check NCCL if library is nil.
func InspectSharing(gpus []GPU, library *Library, getenv func(string) string) GPUSharing {
	s := GPUSharing{IsServiceRunning: mps.IsRunning(getenv)}
	if path, err := mps.Find(); err == nil {
		s.ServiceProgram = path
	}

	canRunMPS := s.IsServiceRunning || s.ServiceProgram != ""
	s.Obstacle = cmp.Or(
		findSetupObstacle(gpus, library, getenv), findComputeModeObstacle(gpus, canRunMPS))
	return s
}

// findSetupObstacle returns what prevents sharing on every GPU, or "".
func findSetupObstacle(gpus []GPU, library *Library, getenv func(string) string) string {
	value := getenv(SharingVariable)
	switch {
	case len(gpus) == 0:
		return "there is no GPU"
	case value != "" && value != "1":
		return fmt.Sprintf("%s=%s prohibits it", SharingVariable, value)
	case library != nil && library.Error != "":
		return library.Error
	case library != nil && library.Version < minSharingVersion:
		return fmt.Sprintf("NCCL %s does not support it: install %s or newer", library.Text,
			nccl.VersionText(minSharingVersion))
	default:
		return ""
	}
}

// findComputeModeObstacle describes the first GPU whose compute mode prevents sharing, or returns
// "". With MPS, several ranks can use a GPU in exclusive mode.
func findComputeModeObstacle(gpus []GPU, canRunMPS bool) string {
	for i := range gpus {
		g := &gpus[i]
		switch {
		case g.IsProhibited:
			return fmt.Sprintf("the compute mode of GPU %d is prohibited: run nvidia-smi -c DEFAULT",
				g.Ordinal)
		case g.IsExclusive && !canRunMPS:
			return fmt.Sprintf("the compute mode of GPU %d admits only one process: run nvidia-smi -c "+
				"DEFAULT, or install nvidia-cuda-mps-control", g.Ordinal)
		}
	}

	return ""
}

// judgeSharing never warns, because in most programs each rank has its own GPU.
func judgeSharing(f *Facts, s *Section) {
	sharing := &f.Sharing
	switch {
	case len(f.GPUs) == 0: // there is nothing to share
	case sharing.Obstacle != "":
		s.addOK("ranks cannot share a GPU: %s", sharing.Obstacle)
	case sharing.IsServiceRunning:
		s.addOK("ranks can share a GPU concurrently: the Multi-Process Service is running")
	case sharing.ServiceProgram != "":
		s.addOK("ranks can share a GPU concurrently: symmem starts %s", sharing.ServiceProgram)
	default:
		s.addOK("ranks can share a GPU, but only in turns: there is no nvidia-cuda-mps-control")
	}
}
