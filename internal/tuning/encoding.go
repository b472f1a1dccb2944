package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// formatText explains the format to users who open a file with a table. A table contains the rules
// by which symmem chooses the path of each collective.
const formatText = "A collective whose larger buffer has up to up_to bytes takes the path of " +
	"that step; the last step covers all larger sizes. otherwise is the path of calls without a " +
	"rule. Rules with memory decide first, whether a call on symmetric or on any buffers takes " +
	"the direct path if it can; one without operation covers all operations without a " +
	"specific rule, and other leaves the choice to the rules without memory. Everything else, such " +
	"as the measured times, explains the rules. All ranks need the same table."

// file is the JSON document with a table.
type file struct {
	Version int    `json:"version"`
	About   string `json:"about"`
	*Table
}

var (
	// foldableObject matches a JSON object on several lines without nested objects or lists. Encode
	// puts such an object on one line.
	foldableObject = regexp.MustCompile(`\{\n[^{}\[\]]*\n\s*\}`)
	// lineEnd matches the end of a line and the indentation of the next.
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

	fold := func(object []byte) []byte { return lineEnd.ReplaceAll(object, []byte(" ")) }
	folded := foldableObject.ReplaceAllFunc(indented, fold)
	return append(folded, '\n'), nil
}

// version is the part of a file that Decode reads first, because the other fields depend on it.
type version struct {
	Version *int `json:"version"` // nil if the document has no version
}

// Decode returns the table in a JSON document from Encode. It rejects other versions, unknown
// fields and invalid tables.
func Decode(encoded []byte) (*Table, error) {
	var format version
	if err := json.Unmarshal(encoded, &format); err != nil {
		return nil, addLineNumber(encoded, unknownOffset, err)
	}

	if format.Version == nil {
		return nil, errors.New("this is not a tuning table: it has no version")
	}

	if *format.Version != Version {
		return nil, fmt.Errorf("version is %d, but this program reads %d: run symmem tune again",
			*format.Version, Version)
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

// unknownOffset is the offset of an error whose position is not known.
const unknownOffset int64 = -1

// addLineNumber adds the line of a decoding error to err. If err does not contain a position, the
// line is that of offset, in bytes from the start of encoded. If offset is also unknownOffset,
// addLineNumber returns err unchanged.
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

	before := encoded[:min(offset, int64(len(encoded)))]
	line := 1 + bytes.Count(before, []byte("\n"))
	return fmt.Errorf("line %d: %w", line, err)
}
