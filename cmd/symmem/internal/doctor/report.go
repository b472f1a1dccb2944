package doctor

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"symmem/internal/ranklist"
)

// Level rates a finding. A section or report has the level of its worst finding.
type Level string

// The levels, from the best to the worst.
const (
	OK   Level = "ok"   // no action is needed
	Warn Level = "warn" // some calls are slow or fail
	Fail Level = "fail" // symmem does not work
)

// Finding describes a fact or a problem.
type Finding struct {
	Level  Level  `json:"level"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"` // how to solve the problem
}

// Section holds the findings about one subject. WriteText prints it as:
//
//	driver
//	  ok    driver 520.61 for CUDA 11.8, /usr/lib/libcuda.so.1
//	  warn  NCCL does not use virtual memory management with a driver for CUDA 11.8, ...
//	        to do: install a driver for CUDA 12.0 or newer
type Section struct {
	Name     string    `json:"name"`  // such as "driver"
	Level    Level     `json:"level"` // worst level of the findings
	Findings []Finding `json:"findings"`
}

// Report is the result of Examine.
type Report struct {
	Verdict  Level     `json:"verdict"`  // worst level of the sections
	Backend  string    `json:"backend"`  // the backend that symmem.Open chooses
	Ranks    int       `json:"ranks"`    // number of ranks in the trial, or 0 without a trial
	Sections []Section `json:"sections"` // sections without findings are omitted
	Facts    Facts     `json:"facts"`    // argument of Examine
}

// Facts describes a machine.
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

// Examine judges facts, without querying the system.
func Examine(f *Facts) *Report {
	r := &Report{Verdict: OK, Backend: f.Backend, Facts: *f}
	if f.Trial != nil {
		r.Ranks = f.Trial.Ranks
	}

	for _, subject := range []struct {
		name     string
		needsGPU bool // skipped if the host backend is requested
		judge    func(*Facts, *Section)
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
		if subject.needsGPU && f.RequestedBackend == "host" {
			continue
		}

		s := Section{Name: subject.name, Level: OK, Findings: []Finding{}}
		subject.judge(f, &s)
		if len(s.Findings) > 0 {
			r.Sections = append(r.Sections, s)
			r.Verdict = worseLevel(r.Verdict, s.Level)
		}
	}

	return r
}

func (f *Facts) usesNCCL() bool { return f.Backend == "nccl" }

func worseLevel(a, b Level) Level {
	switch {
	case a == Fail || b == Fail:
		return Fail
	case a == Warn || b == Warn:
		return Warn
	default:
		return OK
	}
}

func (s *Section) addOK(format string, args ...any) {
	s.Findings = append(s.Findings, Finding{Level: OK, Text: fmt.Sprintf(format, args...)})
}

func (s *Section) add(level Level, advice, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.Findings = append(s.Findings, Finding{Level: level, Text: text, Advice: advice})
	s.Level = worseLevel(s.Level, level)
}

// Problems returns the findings of level Warn or Fail.
func (r *Report) Problems() []Finding {
	problems := []Finding{} // not nil, so that JSON shows [] instead of null
	for i := range r.Sections {
		for _, f := range r.Sections[i].Findings {
			if f.Level != OK {
				problems = append(problems, f)
			}
		}
	}

	return problems
}

// WriteText writes the findings of each section as text, and a summary.
func (r *Report) WriteText(w io.Writer) error {
	var out bytes.Buffer
	counts := map[Level]int{}
	for i := range r.Sections {
		s := &r.Sections[i]
		fmt.Fprintf(&out, "%s\n", s.Name)
		for _, f := range s.Findings {
			counts[f.Level]++
			fmt.Fprintf(&out, "  %-4s  %s\n", f.Level, indentRest(f.Text))
			if f.Advice != "" {
				fmt.Fprintf(&out, "        to do: %s\n", indentRest(f.Advice))
			}
		}
	}

	fmt.Fprintf(&out, "\n%s backend: %s\n", r.Backend, summaryText(counts))
	_, err := w.Write(out.Bytes())
	return err
}

// indentRest aligns the second and later lines of a text with the first.
func indentRest(text string) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", 8))
}

func summaryText(counts map[Level]int) string {
	warnings := ranklist.Plural(counts[Warn], "warning")
	switch {
	case counts[Fail] > 0:
		return fmt.Sprintf("%d failed, %s", counts[Fail], warnings)
	case counts[Warn] > 0:
		return "it works, with " + warnings
	default:
		return "no problems"
	}
}
