package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"syscall"
)

// formatText is the value of "about". It explains the format to users.
const formatText = "A collective takes the path of the first step whose 'up_to' is at least the " +
	"size of its larger buffer; the last step has no limit. Calls without a rule take the path in " +
	"'otherwise'. Rules with 'memory' come first, for calls that can take the direct path: on " +
	"'symmetric' or on 'any' other buffers. If they lead to the path 'other', the rules without " +
	"'memory' choose. A rule without 'operation' covers all operations without a rule for their " +
	"name. All other fields, such as the measured times, explain the rules. All ranks need the " +
	"same table."

// file is the JSON document of a table, such as
//
//	{
//	  "version": 4,
//	  "about": "A collective whose larger buffer ...",
//	  "device": "NVIDIA H200",
//	  ...
//	  "otherwise": "plain",
//	  "rules": [
//	    {
//	      "operation": "AllReduce",
//	      "ranks": 4,
//	      "machines": 1,
//	      "steps": [
//	        {
//	          "up_to": "160KiB",
//	          "path": "window",
//	          "measured": [
//	            { "bytes": "1KiB", "plain_us": 13, "window_us": 7, "noise_percent": 1.5 }
//	          ]
//	        },
//	        { "path": "plain" }
//	      ]
//	    }
//	  ]
//	}
type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

var (
	// flatObject matches an object without nested objects or lists. Encode puts it on one line.
	flatObject = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)
	// lineEnd matches a line break and the indentation of the next line.
	lineEnd = regexp.MustCompile(`\n\s*`)
)

// Encode returns the table as JSON. Equal tables have the same encoding.
func (t *Table) Encode() ([]byte, error) {
	if err := t.Validate(); err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}

	sortedTable := *t
	sortedTable.Rules = sorted(t.Rules)
	content := file{Version: Version, About: formatText, Table: &sortedTable}
	const noPrefix, indent = "", "  "
	indented, err := json.MarshalIndent(content, noPrefix, indent)
	if err != nil {
		return nil, fmt.Errorf("encoding a tuning table: %w", err)
	}

	putOnOneLine := func(object []byte) []byte { return lineEnd.ReplaceAll(object, []byte(" ")) }
	folded := flatObject.ReplaceAllFunc(indented, putOnOneLine)
	return append(folded, '\n'), nil
}

const maxFileBytes = 16 << 20 // a table needs about 4 KiB for each operation and number of ranks

// ReadFile reads a table from a regular file. It returns an error for devices, which may have no
// end, and for pipes, which only one rank could read. Only errors of system calls wrap an
// *fs.PathError.
func ReadFile(name string) (*Table, error) {
	// Without O_NONBLOCK, opening a pipe would wait for its writer.
	const unusedMode = 0 // No file is created.
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, unusedMode)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}

	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}

	encoded, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}

	if len(encoded) > maxFileBytes {
		return nil, fmt.Errorf("%s has more than %d bytes, so it is not a tuning table",
			name, maxFileBytes)
	}

	return Decode(encoded)
}

// Decode returns the table of a JSON document. It rejects other versions, unknown fields and
// invalid tables.
func Decode(encoded []byte) (*Table, error) {
	if err := checkVersion(encoded); err != nil {
		return nil, err
	}

	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	decoded := file{Table: &Table{}}
	if err := decoder.Decode(&decoded); err != nil {
		return nil, addLineNumber(encoded, decoder.InputOffset(), err)
	}

	if err := decoded.Validate(); err != nil {
		return nil, err
	}

	return decoded.Table, nil
}

// version has the only field that all versions of the format share. The type's name appears in
// errors of package json.
type version struct {
	Version *int `json:"version"` // nil if absent
}

func checkVersion(encoded []byte) error {
	var document version
	if err := json.Unmarshal(encoded, &document); err != nil {
		return addLineNumber(encoded, unknownOffset, err)
	}

	if document.Version == nil {
		return errors.New("this is not a tuning table: it has no version")
	}

	if *document.Version != Version {
		return fmt.Errorf("version is %d, but this program reads %d: run symmem tune again",
			*document.Version, Version)
	}

	return nil
}

const unknownOffset int64 = -1

// addLineNumber adds a line number to err. It uses the offset in err or, without one, offset. If
// both are unknown, it returns err.
func addLineNumber(encoded []byte, offset int64, err error) error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &wrongType):
		offset = wrongType.Offset
	}

	if offset == unknownOffset {
		return err
	}

	textBefore := encoded[:min(offset, int64(len(encoded)))]
	line := 1 + bytes.Count(textBefore, []byte("\n"))
	return fmt.Errorf("line %d: %w", line, err)
}
