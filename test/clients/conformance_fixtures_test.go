//go:build clients

package clients

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	mcpserver "github.com/mark3labs/mcp-go/server"
)

// addFixtures gives a server what the conformance suite expects of one: tools, resources and
// prompts of fixed names, and the capabilities that go with them. The product has none of
// them but tools. What they answer is as the suite's scenarios describe it.
func addFixtures(s *mcpserver.MCPServer) {
	for _, capable := range []mcpserver.ServerOption{
		mcpserver.WithLogging(), mcpserver.WithElicitation(), mcpserver.WithCompletions(),
		mcpserver.WithResourceCapabilities(true, false), mcpserver.WithPromptCapabilities(false),
	} {
		capable(s)
	}
	s.EnableSampling()
	f := fixtures{s}
	f.contents()
	f.notifications()
	f.questions()
	f.resources()
	f.prompts()
	f.rounds()
}

// A picture of one pixel and a sound of one sample.
const (
	pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	sound = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
)

type fixtures struct{ *mcpserver.MCPServer }

// tool adds one whose arguments, named, are strings that it needs.
func (f fixtures) tool(name string, do mcpserver.ToolHandlerFunc, arguments ...string) {
	options := []mcp.ToolOption{mcp.WithDescription("a fixture of the conformance suite")}
	for _, a := range arguments {
		options = append(options, mcp.WithString(a, mcp.Required()))
	}
	f.AddTool(mcp.NewTool(name, options...), do)
}

func textResource(uri, kind, of string) mcp.TextResourceContents {
	return mcp.TextResourceContents{URI: uri, MIMEType: kind, Text: of}
}

// contents are the tools that answer at once.
func (f fixtures) contents() {
	for name, content := range map[string][]mcp.Content{
		"test_simple_text":       {mcp.NewTextContent("This is a simple text response for testing.")},
		"test_image_content":     {mcp.NewImageContent(pixel, "image/png")},
		"test_audio_content":     {mcp.NewAudioContent(sound, "audio/wav")},
		"test_embedded_resource": {mcp.NewEmbeddedResource(textResource("test://embedded-resource", "text/plain", "This is an embedded resource content."))},
		"test_multiple_content_types": {
			mcp.NewTextContent("Multiple content types test:"), mcp.NewImageContent(pixel, "image/png"),
			mcp.NewEmbeddedResource(textResource("test://mixed-content-resource", "application/json", `{"test":"data","value":123}`)),
		},
	} {
		f.tool(name, func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: content}, nil
		})
	}
	f.tool("test_error_handling", func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultError("This tool intentionally returns an error for testing"), nil
	})
	f.AddTool(mcp.NewToolWithRawSchema("json_schema_2020_12_tool", "a fixture of the conformance suite", schema2020), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return mcp.NewToolResultText("done"), nil
	})
}

var schema2020 = json.RawMessage(`{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
"$defs":{"address":{"$anchor":"addressDef","type":"object","properties":{"street":{"type":"string"},"city":{"type":"string"}}}},
"properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"contactMethod":{"type":"string","enum":["phone","email"]},"phone":{"type":"string"},"email":{"type":"string"}},
"allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],
"if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"then":{"required":["phone"]},"else":{"required":["email"]},
"additionalProperties":false}`)

// rest is how long a fixture waits after what it says: mcp-go's HTTP loses a notification
// that it has taken from its queue and not written yet when the call is answered. Nothing in
// the product depends on one.
const rest = 100 * time.Millisecond

// notifications are the tools that say something before they answer.
func (f fixtures) notifications() {
	logs := func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		for _, said := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
			if err := f.SendLogMessageToClient(ctx, mcp.NewLoggingMessageNotification(mcp.LoggingLevelInfo, "conformance", said)); err != nil {
				return nil, err
			}
			time.Sleep(rest)
		}
		return mcp.NewToolResultText("Tool with logging executed successfully"), nil
	}
	f.tool("test_tool_with_logging", logs)
	f.tool("test_logging_tool", logs)
	f.tool("test_tool_with_progress", func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if req.Params.Meta == nil || req.Params.Meta.ProgressToken == nil {
			return mcp.NewToolResultError("no progress token"), nil
		}
		for _, done := range []int{0, 50, 100} {
			if err := f.SendNotificationToClient(ctx, string(mcp.MethodNotificationProgress), map[string]any{
				"progressToken": req.Params.Meta.ProgressToken, "progress": done, "total": 100,
			}); err != nil {
				return nil, err
			}
			time.Sleep(rest)
		}
		return mcp.NewToolResultText("progress was told"), nil
	})
}

// questions are the tools that ask the client in the middle of a call, as the older era does.
func (f fixtures) questions() {
	f.tool("test_sampling", func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the suite waits 30 s
		defer cancel()
		got, err := f.RequestSampling(ctx, mcp.CreateMessageRequest{
			Request: mcp.Request{Method: string(mcp.MethodSamplingCreateMessage)}, CreateMessageParams: sample(req.GetString("prompt", "")),
		})
		if err != nil {
			return nil, err
		}
		return mcp.NewToolResultText(fmt.Sprintf("LLM response: %v", got.Content)), nil
	}, "prompt")
	ask := func(schema string) mcpserver.ToolHandlerFunc {
		return func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			got, err := f.RequestElicitation(ctx, mcp.ElicitationRequest{
				Request: mcp.Request{Method: string(mcp.MethodElicitationCreate)}, Params: suiteForm(req.GetString("message", "Please fill in"), schema),
			})
			if err != nil {
				return nil, err
			}
			return mcp.NewToolResultText(fmt.Sprintf("Elicitation completed: action=%s, content=%v", got.Action, got.Content)), nil
		}
	}
	f.tool("test_elicitation", ask(`"username":{"type":"string"},"email":{"type":"string"}`), "message")
	f.tool("test_elicitation_sep1034_defaults", ask(`"name":{"type":"string","default":"John Doe"},"age":{"type":"integer","default":30},"score":{"type":"number","default":95.5},
"status":{"type":"string","enum":["active","inactive","pending"],"default":"active"},"verified":{"type":"boolean","default":true}`))
	f.tool("test_elicitation_sep1330_enums", ask(`"untitledSingle":{"type":"string","enum":["option1","option2","option3"]},
"titledSingle":{"type":"string","oneOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"}]},
"legacyEnum":{"type":"string","enum":["opt1","opt2"],"enumNames":["Option One","Option Two"]},
"untitledMulti":{"type":"array","items":{"type":"string","enum":["option1","option2"]}},
"titledMulti":{"type":"array","items":{"anyOf":[{"const":"value1","title":"First"},{"const":"value2","title":"Second"}]}}`))
}

func suiteForm(message, properties string) mcp.ElicitationParams {
	return mcp.ElicitationParams{Message: message, RequestedSchema: json.RawMessage(`{"type":"object","properties":{` + properties + `}}`)}
}

func sample(prompt string) mcp.CreateMessageParams {
	return mcp.CreateMessageParams{Messages: []mcp.SamplingMessage{{Role: mcp.RoleUser, Content: mcp.NewTextContent(prompt)}}, MaxTokens: 100}
}

func (f fixtures) resources() {
	resource := func(c mcp.ResourceContents, uri, kind string) {
		f.AddResource(mcp.NewResource(uri, strings.TrimPrefix(uri, "test://"), mcp.WithMIMEType(kind)), func(context.Context, mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
			return []mcp.ResourceContents{c}, nil
		})
	}
	resource(textResource("test://static-text", "text/plain", "This is the content of the static text resource."), "test://static-text", "text/plain")
	resource(textResource("test://watched-resource", "text/plain", "watched"), "test://watched-resource", "text/plain")
	resource(mcp.BlobResourceContents{URI: "test://static-binary", MIMEType: "image/png", Blob: pixel}, "test://static-binary", "image/png")
	f.AddResourceTemplate(mcp.NewResourceTemplate("test://template/{id}/data", "template", mcp.WithTemplateMIMEType("application/json")), func(_ context.Context, req mcp.ReadResourceRequest) ([]mcp.ResourceContents, error) {
		id := strings.TrimSuffix(strings.TrimPrefix(req.Params.URI, "test://template/"), "/data")
		return []mcp.ResourceContents{textResource(req.Params.URI, "application/json", fmt.Sprintf(`{"id":%q,"templateTest":true,"data":"Data for ID: %s"}`, id, id))}, nil
	})
}

func (f fixtures) prompts() {
	prompt := func(name string, answer func(a map[string]string) []mcp.Content, arguments ...string) {
		var options []mcp.PromptOption
		for _, a := range arguments {
			options = append(options, mcp.WithArgument(a, mcp.RequiredArgument()))
		}
		f.AddPrompt(mcp.NewPrompt(name, append(options, mcp.WithPromptDescription("a fixture of the conformance suite"))...), func(_ context.Context, req mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			out := &mcp.GetPromptResult{}
			for _, c := range answer(req.Params.Arguments) {
				out.Messages = append(out.Messages, mcp.NewPromptMessage(mcp.RoleUser, c))
			}
			return out, nil
		})
	}
	prompt("test_simple_prompt", func(map[string]string) []mcp.Content {
		return []mcp.Content{mcp.NewTextContent("This is a simple prompt for testing.")}
	})
	prompt("test_prompt_with_arguments", func(a map[string]string) []mcp.Content {
		return []mcp.Content{mcp.NewTextContent(fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", a["arg1"], a["arg2"]))}
	}, "arg1", "arg2")
	prompt("test_prompt_with_embedded_resource", func(a map[string]string) []mcp.Content {
		return []mcp.Content{
			mcp.NewEmbeddedResource(textResource(a["resourceUri"], "text/plain", "Embedded resource content for testing.")),
			mcp.NewTextContent("Please process the embedded resource above."),
		}
	}, "resourceUri")
	prompt("test_prompt_with_image", func(map[string]string) []mcp.Content {
		return []mcp.Content{mcp.NewImageContent(pixel, "image/png"), mcp.NewTextContent("Please analyze the image above.")}
	})
}

// The states that the tools of several rounds give, and take back only as they were.
const (
	stateFirst  = "round-1"
	stateSecond = "round-2"
)

var errState = errors.New("this state was not given by this server")

// rounds are the tools that need input, as the stateless era asks for it: each asks while an
// answer is missing.
func (f fixtures) rounds() {
	b := mcpserver.NewInputRequestBuilder
	name := suiteForm("What is your name?", `"name":{"type":"string"}`)
	confirm := suiteForm("Please confirm", `"ok":{"type":"boolean"}`)
	answered := func(p mcp.MultiRoundTripParams, id string) bool {
		return mcpserver.ElicitationResponse(p.InputResponses, id) != nil
	}
	round := func(tool string, next func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error)) {
		f.tool(tool, func(_ context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			asked, err := next(req.Params.MultiRoundTripParams)
			switch {
			case err != nil:
				return nil, err
			case asked != nil:
				return asked.ToolResult(), nil
			}
			return mcp.NewToolResultText("state-ok: all was answered"), nil
		})
	}
	elicits := func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		if answered(p, "user_name") {
			return nil, nil
		}
		return b("").Elicit("user_name", name), nil
	}
	round("test_input_required_result_elicitation", elicits)
	round("test_streaming_elicitation", elicits)
	round("test_input_required_result_sampling", func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		if mcpserver.SamplingResponse(p.InputResponses, "capital_question") != nil {
			return nil, nil
		}
		return b("").Sample("capital_question", sample("What is the capital of France?")), nil
	})
	round("test_input_required_result_list_roots", func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		if mcpserver.RootsResponse(p.InputResponses, "client_roots") != nil {
			return nil, nil
		}
		return b("").Roots("client_roots"), nil
	})
	confirms := func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		switch {
		case p.RequestState != "" && p.RequestState != stateFirst:
			return nil, errState
		case p.RequestState != "" && answered(p, "confirm"):
			return nil, nil
		}
		return b(stateFirst).Elicit("confirm", confirm), nil
	}
	round("test_input_required_result_request_state", confirms)
	round("test_input_required_result_tampered_state", confirms)
	round("test_input_required_result_multiple_inputs", func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		if p.RequestState == stateFirst && answered(p, "user_name") && mcpserver.SamplingResponse(p.InputResponses, "greeting") != nil && mcpserver.RootsResponse(p.InputResponses, "client_roots") != nil {
			return nil, nil
		}
		return b(stateFirst).Elicit("user_name", name).Sample("greeting", sample("Generate a greeting")).Roots("client_roots"), nil
	})
	round("test_input_required_result_multi_round", func(p mcp.MultiRoundTripParams) (*mcpserver.InputRequestBuilder, error) {
		switch {
		case p.RequestState == stateSecond && answered(p, "step2"):
			return nil, nil
		case p.RequestState == stateFirst && answered(p, "step1"):
			return b(stateSecond).Elicit("step2", suiteForm("What is your favorite color?", `"color":{"type":"string"}`)), nil
		}
		return b(stateFirst).Elicit("step1", name), nil
	})
	f.tool("test_input_required_result_capabilities", func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		asked, can := b(""), mcpserver.RequestProtocolInfoFromContext(ctx).ClientCapabilities
		if can != nil && can.Elicitation != nil {
			asked.Elicit("user_name", name)
		}
		if can != nil && can.Sampling != nil {
			asked.Sample("greeting", sample("Generate a greeting"))
		}
		return asked.ToolResult(), nil
	})
	f.tool("test_missing_capability", func(ctx context.Context, req mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if can := mcpserver.RequestProtocolInfoFromContext(ctx).ClientCapabilities; can == nil || can.Sampling == nil {
			return nil, mcp.MissingRequiredClientCapabilityError{Capability: "sampling"}
		}
		return mcp.NewToolResultText("done"), nil
	})
	f.AddPrompt(mcp.NewPrompt("test_input_required_result_prompt", mcp.WithPromptDescription("a fixture of the conformance suite")), func(_ context.Context, req mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		if !answered(req.Params.MultiRoundTripParams, "user_context") {
			return b("").Elicit("user_context", suiteForm("What context should the prompt use?", `"context":{"type":"string"}`)).PromptResult(), nil
		}
		return &mcp.GetPromptResult{Messages: []mcp.PromptMessage{mcp.NewPromptMessage(mcp.RoleUser, mcp.NewTextContent("done"))}}, nil
	})
}
