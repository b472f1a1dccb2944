package doctor

import (
	"fmt"
	"slices"

	"symmem/internal/mps"
	"symmem/internal/nccl"
)

// Library describes NCCL.
type Library struct {
	Path       string `json:"path,omitempty"`
	Origin     string `json:"origin,omitempty"`
	Version    int    `json:"version,omitempty"` // such as 22809
	Text       string `json:"text,omitempty"`    // of the version, such as 2.28.9
	HasWindows bool   `json:"windows"`           // this version can register windows
	// Error states why NCCL could not be loaded, and lists the places that were searched.
	Error string `json:"error,omitempty"`
}

// InspectLibrary loads NCCL.
func InspectLibrary() Library {
	l, err := nccl.Load()
	if err != nil {
		return Library{Error: err.Error()}
	}

	version, text := l.Version()
	return Library{
		Path: l.Path(), Origin: l.Origin(), Version: version, Text: text,
		HasWindows: l.HasWindows(),
	}
}

func judgeLibrary(f *Facts, s *Section) {
	l := &f.Library
	if f.RequestedBackend == "auto" && len(f.GPUs) == 0 {
		return // NCCL is not needed without a GPU
	}

	if l.Error != "" {
		s.add(Fail, "install NCCL (pip install nvidia-nccl-cu12, or a package of the system), or "+
			"set its path with --nccl PATH or SYMMEM_NCCL", "%s", l.Error)
		return
	}

	s.addOK("NCCL %s, %s, found by %s", l.Text, l.Path, l.Origin)
	if !l.HasWindows {
		s.add(Warn, "install NCCL 2.28.7 or newer", "NCCL %s cannot register windows (2.27.3 can), so "+
			"all collectives take the plain path", l.Text)
		return
	}

	s.addOK("NCCL can register windows")
	major := 0
	for i := range f.GPUs {
		major = max(major, f.GPUs[i].Major)
	}

	for _, d := range nccl.Defects {
		if d.Affects(l.Version, major) {
			s.addOK("known defect (%s): %s; %s", d.Versions(), d.Effect, d.Workaround)
		}
	}

	if l.Version < 22800 {
		s.addOK("this version logs its kernels on all ranks of a communicator; from 2.28 on, only rank " +
			"0 does")
	}
}

// SharingVariable is a variable of NCCL, which lets ranks share a GPU if the value is 1.
const SharingVariable = "NCCL_MULTI_RANK_GPU_ENABLE"

// minSharingVersion is the first version of NCCL that lets ranks share a GPU.
const minSharingVersion = 23000 // 2.30

// GPUSharing describes whether several ranks (processes) can use one GPU. Their kernels run in
// turns, or concurrently if NVIDIA's Multi-Process Service (MPS) is running.
type GPUSharing struct {
	Obstacle         string `json:"missing,omitempty"` // why ranks cannot share a GPU, or empty
	IsServiceRunning bool   `json:"mps_runs"`          // MPS is running
	ServiceProgram   string `json:"mps,omitempty"`     // path of MPS's control program, or empty
}

// InspectSharing checks whether ranks can share the GPUs. It does not check NCCL if library is nil.
func InspectSharing(gpus []GPU, library *Library, getenv func(string) string) GPUSharing {
	s := GPUSharing{IsServiceRunning: mps.IsRunning(getenv)}
	if path, err := mps.Find(); err == nil {
		s.ServiceProgram = path
	}

	canRunMPS := s.IsServiceRunning || s.ServiceProgram != ""
	s.Obstacle = findSetupObstacle(gpus, library, getenv)
	if s.Obstacle == "" {
		s.Obstacle = findComputeModeObstacle(gpus, canRunMPS)
	}

	return s
}

// findSetupObstacle returns an obstacle that affects all GPUs, or "".
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

// judgeSharing adds no warning, because in most programs each rank has its own GPU.
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

// canShareGPUs reports whether sharing is enabled and possible.
func (f *Facts) canShareGPUs() bool {
	isAllowed := slices.ContainsFunc(f.Variables, func(v Variable) bool {
		return v.Name == SharingVariable && v.Value == "1"
	})
	return isAllowed && f.Sharing.Obstacle == ""
}
