package doctor

import (
	"errors"

	"symmem/internal/nccl"
)

// Library is NCCL.
type Library struct {
	Path   string `json:"path,omitempty"`
	Origin string `json:"origin,omitempty"`
	// Version is the code, such as 22809, and Text what people write, such as 2.28.9.
	Version int    `json:"version,omitempty"`
	Text    string `json:"text,omitempty"`
	// Windows tells that this version can register windows.
	Windows bool `json:"windows"`
	// Error says why there is none, with all places that were looked at. Copies tells that the
	// process has another copy.
	Error  string `json:"error,omitempty"`
	Copies bool   `json:"copies,omitempty"`
}

// LookAtLibrary loads NCCL. An empty path searches as symmem does.
func LookAtLibrary(path string) Library {
	l, err := nccl.Load(path)
	if err != nil {
		return Library{Error: err.Error(), Copies: errors.Is(err, nccl.ErrTwoCopies)}
	}
	version, text := l.Version()
	return Library{
		Path: l.Path(), Origin: l.Origin(), Version: version, Text: text,
		Windows: l.Windows(),
	}
}

// defect is a known fault of NCCL versions from one up to, but not with, another.
type defect struct {
	from, below int
	text        string
}

// defects are those that matter for windows and that symmem works around. Facts are from the
// sources of the versions, and from tests on GPUs.
var defects = []defect{
	{
		from: 22703, below: 23003,
		text: "known defect: kernels over windows give wrong results for inputs that are not " +
			"aligned to 4 bytes, of types of 1 and 2 bytes (right from 2.30.3 on); symmem takes " +
			"the plain path for them",
	},
	{
		from: 23003, below: 23008,
		text: "known defect: AllReduce with avg finds no kernel over windows (2.30.3 to 2.30.7); " +
			"symmem takes the plain path for it",
	},
	{
		from: 22703, below: 22800,
		text: "every rank of a communicator logs the kernels that it takes; from 2.28 on rank 0 does",
	},
}

func judgeLibrary(f *Facts, s *Section) {
	l := &f.Library
	if f.Asked == "auto" && len(f.GPUs) == 0 {
		// Without a GPU nobody misses it.
		return
	}
	if l.Error != "" {
		advice := "install NCCL (pip install nvidia-nccl-cu12, or a package of the system), or " +
			"name its file: --nccl PATH, or SYMMEM_NCCL"
		if l.Copies {
			advice = "leave --nccl and SYMMEM_NCCL out, or name the copy that is loaded"
		}
		s.add(Fail, advice, "%s", l.Error)
		return
	}
	s.ok("NCCL %s, %s, found by %s", l.Text, l.Path, l.Origin)
	if !l.Windows {
		s.add(Warn, "install NCCL 2.28.7 or newer", "NCCL %s has no windows (2.27.3 is the first "+
			"that has): every collective takes the plain path", l.Text)
		return
	}
	s.ok("it can register windows")
	for _, d := range defects {
		if l.Version >= d.from && l.Version < d.below {
			s.ok("%s", d.text)
		}
	}
	l.judgeAbort(s)
}

// leaking is the first version whose abort gives back the memory of windows, 2.29.7.
const leaking = 22907

// judgeAbort looks at what is left of windows after a fault.
func (l *Library) judgeAbort(s *Section) {
	if l.Version < leaking {
		s.ok("known defect: after a fault that ends kernels, the memory of their windows stays until " +
			"the process ends (right from 2.29.7 on)")
	}
}
