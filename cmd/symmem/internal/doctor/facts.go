package doctor

// Facts holds the facts about a machine that Examine judges. Sizes are in bytes.
type Facts struct {
	RequestedBackend string     `json:"asked"`
	Backend          string     `json:"backend"` // the one that symmem.Open would choose
	Driver           Driver     `json:"driver"`
	GPUs             []GPU      `json:"gpus"`
	Library          Library    `json:"nccl"`
	Sharing          GPUSharing `json:"sharing"`
	Links            Links      `json:"links"`
	Limits           Limits     `json:"limits"`
	Host             Host       `json:"host"`
	Variables        []Variable `json:"environment"`
	Launcher         Launcher   `json:"launcher"`
	Tuning           Tuning     `json:"tuning"`
	Trial            *Trial     `json:"trial"` // nil if no trial was run
}

func (f *Facts) usesNCCL() bool { return f.Backend == "nccl" }

// ChooseBackend sets Backend as symmem.Open does. If no backend is requested, it chooses nccl if
// there are GPUs and NCCL can be loaded, and host otherwise.
func (f *Facts) ChooseBackend() {
	switch {
	case f.RequestedBackend != "auto":
		f.Backend = f.RequestedBackend
	case len(f.GPUs) > 0 && f.Library.Error == "":
		f.Backend = "nccl"
	default:
		f.Backend = "host"
	}
}

// Examine judges facts and returns the findings. It does not query the system.
func Examine(f *Facts) *Report {
	r := &Report{Verdict: OK, Backend: f.Backend, Facts: *f}
	if f.Trial != nil {
		r.Ranks = f.Trial.Ranks
	}

	for _, part := range []struct {
		name  string
		isGPU bool // skipped if the host backend is requested
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
		if part.isGPU && f.RequestedBackend == "host" {
			continue
		}

		s := Section{Name: part.name, Level: OK, Findings: []Finding{}}
		part.judge(f, &s)
		if len(s.Findings) > 0 {
			r.Sections = append(r.Sections, s)
			r.Verdict = worseLevel(r.Verdict, s.Level)
		}
	}

	return r
}
