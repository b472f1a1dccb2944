package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// A table is encoded as a JSON document such as
//
//	{
//	  "version": 4,
//	  "about": "A collective whose larger buffer ...",
//	  "device": "NVIDIA H200",
//	  ...
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

// formatText is the value of "about". It explains the format to users.
const formatText = "A collective whose larger buffer has up to up_to bytes takes the path of " +
	"that step; the last step covers all larger sizes. otherwise is the path of calls without a " +
	"rule. Rules with memory decide first, whether a call on symmetric or on any buffers takes " +
	"the direct path if it can; one without operation covers all operations without a " +
	"specific rule, and other leaves the choice to the rules without memory. Everything else, such " +
	"as the measured times, explains the rules. All ranks need the same table."

type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

var (
	// foldableObject matches an object without nested objects or lists. Encode puts it on one line.
	foldableObject = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)
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
	folded := foldableObject.ReplaceAllFunc(indented, putOnOneLine)
	return append(folded, '\n'), nil
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

// version has the only field that all versions of the format share. Its name appears in errors of
// package json.
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

// addLineNumber adds a line number to err. It uses the offset in err, or else the parameter offset.
// If both are unknown, it returns err unchanged.
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
