package doctor

// Facts are what is known about a machine before anything is judged. Sizes are in bytes.
type Facts struct {
	// Asked is the backend that was asked for, Backend the one that it comes to.
	Asked   string  `json:"asked"`
	Backend string  `json:"backend"`
	Driver  Driver  `json:"driver"`
	GPUs    []GPU   `json:"gpus"`
	Library Library `json:"nccl"`
	Sharing Sharing `json:"sharing"`
	Links   Links   `json:"links"`
	Limits  Limits  `json:"limits"`
	Host    Host    `json:"host"`
	// Variables are those of the environment that matter, and of NCCL's own files.
	Variables []Variable `json:"environment"`
	Launcher  Launcher   `json:"launcher"`
	Tuning    Tuning     `json:"tuning"`
	// Trial is what ranks found; nil if none ran.
	Trial *Trial `json:"trial"`
}

// nccl reports whether the GPU backend is the one to examine.
func (f *Facts) nccl() bool { return f.Backend == "nccl" }

// Choose fills in the backend: the one that was asked for, else GPUs where there are some and NCCL
// is there, as symmem.Open does.
func (f *Facts) Choose() {
	switch {
	case f.Asked != "auto":
		f.Backend = f.Asked
	case len(f.GPUs) > 0 && f.Library.Error == "":
		f.Backend = "nccl"
	default:
		f.Backend = "host"
	}
}

// Examine judges facts. It is a pure function.
func Examine(f *Facts) *Report {
	r := &Report{Verdict: OK, Backend: f.Backend, Facts: *f}
	if f.Trial != nil {
		r.Ranks = f.Trial.Ranks
	}
	for _, part := range []struct {
		name  string
		only  bool // of the GPU backend, or of a machine on which that was to be chosen
		judge func(*Facts, *Section)
	}{
		{"driver", true, judgeDriver},
		{"GPUs", true, judgeGPUs},
		{"NCCL", true, judgeLibrary},
		{"sharing", true, judgeSharing},
		{"links", true, judgeLinks},
		{"limits", false, judgeLimits},
		{"host", false, judgeHost},
		{"environment", false, judgeVariables},
		{"launcher", false, judgeLauncher},
		{"tuning", false, judgeTuning},
		{"trial", false, judgeTrial},
	} {
		if part.only && f.Asked == "host" {
			continue
		}
		s := Section{Name: part.name, Level: OK, Findings: []Finding{}}
		part.judge(f, &s)
		if len(s.Findings) > 0 {
			r.Sections = append(r.Sections, s)
			r.Verdict = worse(r.Verdict, s.Level)
		}
	}
	return r
}
