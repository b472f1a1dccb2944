package doctor

import (
	"symmem/internal/nccl"
)

// Library describes NCCL.
type Library struct {
	Path   string `json:"path,omitempty"`
	Origin string `json:"origin,omitempty"`
	// Version is the version as a number, such as 22809. Text is the version as text, such as
	// 2.28.9.
	Version int    `json:"version,omitempty"`
	Text    string `json:"text,omitempty"`
	// HasWindows reports whether this version can register windows.
	HasWindows bool `json:"windows"`
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
