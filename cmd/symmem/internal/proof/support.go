package proof

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// WhyNoWindows returns why the last communicator in the log has no windows, or "" if it has
// windows or the log does not say.
func (r *Recorder) WhyNoWindows() (string, error) {
	file, err := os.Open(r.file)
	if err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return whyNoWindows(file)
}

// The messages of NCCL from which add takes facts. NCCL up to 2.30 logs unsupportedMessage only
// if a communicator has no windows.
var (
	messagePrefix = regexp.MustCompile(` NCCL (?:INFO|WARN) `)

	nodesMessage       = regexp.MustCompile(`^comm \S+ rank \d+ nRanks \d+ nNodes (\d+) `)
	unsupportedMessage = regexp.MustCompile(
		`^(?:Symmetric memory is not supported\. |symmetricSupport 0, )`)
	supportField = regexp.MustCompile(`(\w+) (-?\d+)`) // name and value in unsupportedMessage
)

// support holds what a log contains about the windows of the last communicator. A window between
// machines needs GIN, NCCL's communication that kernels start.
type support struct {
	isMultiNode      bool              // whether the communicator has ranks on several machines
	fields           map[string]string // fields of unsupportedMessage; nil if there are windows
	isPluginMissing  bool              // whether NCCL has found no usable GIN plug-in
	isGDRCopyMissing bool              // whether GIN over sockets lacks GDRCopy
	skippedType      string            // the NCCL_GIN_TYPE that excludes a plug-in, or ""
}

func whyNoWindows(log io.Reader) (string, error) {
	const maxLineBytes = 1 << 20
	var s support
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		if prefix := messagePrefix.FindStringIndex(lines.Text()); prefix != nil {
			s.add(lines.Text()[prefix[1]:])
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	return s.reason(), nil
}

// add adds the facts in a message, which replace those of earlier communicators.
func (s *support) add(message string) {
	if nodes := nodesMessage.FindStringSubmatch(message); nodes != nil {
		s.isMultiNode = nodes[1] != "1"
	}
	switch {
	case unsupportedMessage.MatchString(message):
		s.fields = map[string]string{}
		for _, field := range supportField.FindAllStringSubmatch(message, -1) {
			s.fields[field[1]] = field[2]
		}
	case strings.HasPrefix(message, "symmetricSupport "): // not 0, so there are windows
		s.fields = nil
	case strings.HasSuffix(message, "GIN/Plugin: Failed to initialize any GIN plugin"):
		s.isPluginMissing = true
	case strings.Contains(message, "RMA/Socket") && strings.Contains(message, "requires GDRCopy"):
		s.isGDRCopyMissing = true
	case strings.HasPrefix(message, "GIN/Plugin: Skipping plugin"):
		if _, value, ok := strings.Cut(message, "NCCL_GIN_TYPE="); ok {
			s.skippedType, _, _ = strings.Cut(value, " ")
		}
	}
}

// reason returns why the communicator has no windows, or "".
func (s *support) reason() string {
	ginSupport, hasGINField := s.fields["globalGinSupport"]
	if value, ok := s.fields["ginSupport"]; ok { // the name in other versions of NCCL
		ginSupport, hasGINField = value, true
	}
	lacksGIN := hasGINField && ginSupport == "0"
	switch {
	case s.fields == nil:
		return ""
	case s.fields["cuMemEnable"] == "0":
		return "cuMem is disabled (NCCL_CUMEM_ENABLE)"
	case !s.isMultiNode || !lacksGIN:
		return "NCCL does not say why. Possible reasons: some GPUs of a machine cannot access each " +
			"other's memory (P2P), or NCCL_WIN_ENABLE is 0"
	case s.isGDRCopyMissing:
		return "windows between machines need GIN, which over sockets needs GDRCopy (libgdrapi.so)"
	case s.skippedType != "":
		return "windows between machines need GIN, and NCCL_GIN_TYPE=" + s.skippedType +
			" excludes a plug-in that NCCL has found"
	case s.isPluginMissing:
		return "windows between machines need GIN, and NCCL found no GIN plug-in"
	case s.fields["cuMemGdrSupport"] == "0":
		return "windows between machines need GIN, which needs GPUDirect RDMA with memory of cuMemCreate"
	}
	return "windows between machines need GIN, but only some ranks have it, or ranks have different " +
		"types of it"
}
