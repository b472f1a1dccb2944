package proof

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// WhyNoWindows returns why the last communicator in the log has no windows (memory that is
// registered on all ranks). It returns "" if the communicator has windows or the log does not say.
func (r *Recorder) WhyNoWindows() (string, error) {
	file, err := os.Open(r.file)
	if err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}
	defer file.Close()
	return whyNoWindows(file)
}

// The messages of NCCL from which support.add takes facts.
var (
	messagePrefix = regexp.MustCompile(` NCCL (?:INFO|WARN) `) // precedes each message

	nodesMessage = regexp.MustCompile(`^comm \S+ rank \d+ nRanks \d+ nNodes (\d+) `)
	// unsupportedMessage matches a message about a communicator without windows. NCCL up to 2.30
	// logs no message about a communicator with windows. In newer versions, this message begins
	// with "symmetricSupport" and another number.
	unsupportedMessage = regexp.MustCompile(
		`^(?:Symmetric memory is not supported\. |symmetricSupport 0, )`)
	supportField = regexp.MustCompile(`(\w+) (-?\d+)`) // name and value in unsupportedMessage
)

// support holds what a log contains about the windows of the last communicator. A window between
// machines needs GIN: network communication that kernels start. NCCL loads plug-ins for GIN.
type support struct {
	isMultiNode      bool              // whether the communicator has ranks on several machines
	fields           map[string]string // fields of unsupportedMessage; nil if there are windows
	isPluginMissing  bool              // whether NCCL has found no usable GIN plug-in
	isGDRCopyMissing bool              // whether GIN over sockets lacks the library GDRCopy
	skippedType      string            // the NCCL_GIN_TYPE that excludes a plug-in, or ""
}

// whyNoWindows is WhyNoWindows for the contents of a log.
func whyNoWindows(log io.Reader) (string, error) {
	const maxLineBytes = 1 << 20
	var s support
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, maxLineBytes)
	for lines.Scan() {
		line := lines.Text()
		if prefix := messagePrefix.FindStringIndex(line); prefix != nil {
			prefixEnd := prefix[1]
			s.add(line[prefixEnd:])
		}
	}

	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("reading NCCL's log: %w", err)
	}

	return s.reason(), nil
}

// add adds the facts in a message. Facts about windows replace those of earlier communicators.
func (s *support) add(message string) {
	if groups := nodesMessage.FindStringSubmatch(message); groups != nil {
		nodeCount := groups[1]
		s.isMultiNode = nodeCount != "1"
	}

	switch {
	case unsupportedMessage.MatchString(message):
		s.fields = map[string]string{}
		for _, field := range supportField.FindAllStringSubmatch(message, -1) {
			name, value := field[1], field[2]
			s.fields[name] = value
		}

	case strings.HasPrefix(message, "symmetricSupport "): // not 0, so there are windows
		s.fields = nil
	case strings.HasSuffix(message, "GIN/Plugin: Failed to initialize any GIN plugin"):
		s.isPluginMissing = true
	case strings.Contains(message, "RMA/Socket") && strings.Contains(message, "requires GDRCopy"):
		s.isGDRCopyMissing = true
	case strings.HasPrefix(message, "GIN/Plugin: Skipping plugin"):
		_, afterName, hasType := strings.Cut(message, "NCCL_GIN_TYPE=")
		if hasType {
			s.skippedType, _, _ = strings.Cut(afterName, " ")
		}
	}
}

// reason returns why the communicator has no windows. It returns "" if there are windows, or the
// log does not contain an unsupportedMessage.
func (s *support) reason() string {
	if s.fields == nil {
		return ""
	}

	ginSupport := s.fields["globalGinSupport"]   // "" if the message lacks the field
	if value, ok := s.fields["ginSupport"]; ok { // the name in other versions of NCCL
		ginSupport = value
	}

	needsGIN := s.isMultiNode
	lacksGIN := ginSupport == "0"
	switch {
	case s.fields["cuMemEnable"] == "0":
		return "cuMem is disabled (NCCL_CUMEM_ENABLE)"
	case !needsGIN || !lacksGIN: // GIN is not the reason
		return "NCCL does not say why. Possible reasons: some GPUs of a machine cannot access each " +
			"other's memory (P2P), or NCCL_WIN_ENABLE is 0"
	// In the following cases, the lack of GIN is the reason.
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
