package proof

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"symmem/internal/dl"
)

// Recorder has NCCL write its log into a file. States: started, closed.
type Recorder struct {
	// file is the log, folder our own folder for it, empty if the user names the file.
	file, folder string
	// kept tells that the user has asked NCCL for a log: the file stays.
	kept    bool
	trouble string
}

// Start makes NCCL log what it chooses, by the variables of the environment. It is called before
// NCCL's first call in this process, since NCCL remembers what it has read.
//
// Variables that are set already stay as they are. If they make NCCL write no such log, Trouble
// says so. Where nothing names a file, it is one in a folder of this process's own, which Close
// removes unless NCCL_DEBUG was set: then the file is the log that the user has asked for.
func Start() (*Recorder, error) {
	folder, err := os.MkdirTemp("", "symmem-proof-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for NCCL's log: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	p := plan(os.Getenv, folder)
	for _, v := range p.set {
		if err := dl.Setenv(v.name, v.value); err != nil {
			return nil, errors.Join(fmt.Errorf("asking NCCL for a log: %w", err),
				os.RemoveAll(folder))
		}
	}
	r := &Recorder{folder: folder, kept: p.kept, trouble: p.trouble}
	if !p.own {
		r.folder, err = "", os.Remove(folder)
	}
	r.file = expand(p.pattern, host, os.Getpid())
	if info, statErr := os.Stat(r.file); statErr == nil && !info.Mode().IsRegular() {
		r.trouble = fmt.Sprintf("%s is %s, which cannot be read back: leave it out", fileVariable,
			r.file)
	}
	return r, err
}

// File is the file of the log. It does not exist before NCCL has something to say.
func (r *Recorder) File() string { return r.file }

// Trouble says why the log cannot tell which kernels ran, and what to do about it; it is empty if
// the log can.
func (r *Recorder) Trouble() string { return r.trouble }

// Read parses what NCCL has said so far. A file that is not there is an empty log.
func (r *Recorder) Read() (*Log, error) {
	file, err := os.Open(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return &Log{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return Parse(file)
}

// Close removes the file unless the user has asked for one. NCCL may go on writing into what is no
// longer there.
func (r *Recorder) Close() error {
	if r.folder == "" || r.kept {
		return nil
	}
	if err := os.RemoveAll(r.folder); err != nil {
		return fmt.Errorf("removing NCCL's log: %w", err)
	}
	return nil
}

// The variables that say what NCCL logs, and where.
const (
	levelVariable = "NCCL_DEBUG"
	partsVariable = "NCCL_DEBUG_SUBSYS"
	fileVariable  = "NCCL_DEBUG_FILE"
)

// parts are what is logged if nothing else is asked for: what proves, and what explains.
const parts = "INIT,TUNING,REG,ALLOC"

// variable is one to set.
type variable struct{ name, value string }

// intent is what to change in the environment.
type intent struct {
	set []variable
	// pattern is the file's name as NCCL_DEBUG_FILE has it; own tells that it is in our folder.
	pattern   string
	own, kept bool
	trouble   string
}

// plan decides what to set, given what is set.
func plan(getenv func(string) string, folder string) intent {
	p := intent{pattern: getenv(fileVariable)}
	level, subsystems := getenv(levelVariable), getenv(partsVariable)
	if p.pattern == "" {
		p.pattern = filepath.Join(escape(folder), "nccl-%p.log")
		p.own = true
		p.set = append(p.set, variable{fileVariable, p.pattern})
	}
	switch {
	case level == "":
		p.set = append(p.set, variable{levelVariable, "INFO"})
	case !strings.EqualFold(level, "INFO") && !strings.EqualFold(level, "TRACE"):
		p.trouble = fmt.Sprintf("%s is %s, so NCCL does not say which kernels it takes: leave it "+
			"out, or make it INFO", levelVariable, level)
	default:
		p.kept = true
	}
	switch {
	case subsystems == "":
		p.set = append(p.set, variable{partsVariable, parts})
	case !logs(subsystems) && p.trouble == "":
		p.trouble = fmt.Sprintf("%s is %s, so NCCL does not say which kernels it takes: leave it "+
			"out, or add TUNING", partsVariable, subsystems)
	}
	return p
}

// logs tells whether a list of subsystems, or of those to leave out after a ^, has TUNING in.
func logs(subsystems string) bool {
	list, inverted := strings.CutPrefix(subsystems, "^")
	for name := range strings.SplitSeq(list, ",") {
		if strings.EqualFold(name, "TUNING") || strings.EqualFold(name, "ALL") {
			return !inverted
		}
	}
	return inverted
}

// escape keeps a folder's name as it is when NCCL expands it.
func escape(name string) string { return strings.ReplaceAll(name, "%", "%%") }

// expand fills in a file's name as NCCL does (ncclDebugInit in src/debug.cc): %h is the host's name
// up to the first dot, with dashes for what cannot be in a file's name, %p the process, %% a
// percent sign, and everything else itself.
func expand(pattern, host string, pid int) string {
	host, _, _ = strings.Cut(host, ".")
	host = strings.NewReplacer("%", "-", "/", "-").Replace(host)
	return strings.NewReplacer("%%", "%", "%h", host, "%p", fmt.Sprint(pid)).Replace(pattern)
}
