"""What each starter project of Langflow 1.13 is expected to say and do. A new release's changes show here."""

from __future__ import annotations

from typing import Final

MODEL = "model"

UNREADY: Final[dict[str, tuple[str, ...]]] = {
    "basic-prompting": ("model:LanguageModelComponent-FLeYF",),
    "blog-writer": ("model:Agent-9tNMJ",),
    "content-aggregator": ("component:SaveToFile-VVVVb", "model:BatchRun-ca", "model:Agent-ZH2Rd"),
    "custom-component-generator": ("model:Agent-I0nts",),
    "deep-research-agent": ("model:Agent-mIgZ5", "model:Agent-plan", "model:Agent-synth"),
    "document-q-a": ("component:KnowledgeRetrieve-docqa", "model:Agent-docqa"),
    "financial-report-parser": ("model:Agent-6rJWA",),
    "hybrid-search-rag": ("model:Agent-hsr", "field:AstraDB-AkDya"),
    "image-sentiment-analysis": ("model:LanguageModelComponent-KHx2J",),
    "instagram-copywriter": ("model:Agent-caption", "model:Agent-MnLtf"),
    "knowledge-retrieval": ("component:Knowledge-Y8gm2",),
    "market-research": ("model:Agent-Hz2it", "model:StructuredOutput-zfjb9"),
    "meeting-summary": ("field:AAITranscriber-ms", "model:Agent-summary"),
    "memory-chatbot": ("model:Agent-AlLub",),
    "multi-agent-flow": ("model:Agent-maf-1", "model:Agent-maf-2", "model:Agent-maf-3"),
    "portfolio-website-code-generator": ("model:Agent-portfolio",),
    "price-deal-finder": ("model:Agent-4ux6k",),
    "research-translation-loop": ("model:LanguageModelComponent-ps5yd",),
    "seo-keyword-generator": ("model:Agent-seovA",),
    "saas-pricing": ("model:Agent-Zm0pK",),
    "sequential-tasks-agents": ("model:Agent-EQcU8", "model:Agent-X1iAT", "model:Agent-b7nmW"),
    "simple-agent": ("model:Agent-EXpSZ",),
    "social-media-agent": ("model:Agent-Ngl5n",),
    "text-sentiment-analysis": ("model:Agent-tsa-a", "model:Agent-tsa-b", "model:Agent-tsa-c"),
    "travel-planning-agents": ("model:Agent-kwDEl", "model:Agent-v7SnN", "model:Agent-1ON2c"),
    "twitter-thread-generator": ("model:Agent-wh9WY",),
    "vector-store-rag": ("component:Knowledge-vLJOb", "model:Agent-F0Dv0"),
}
"""As shipped, none has a model: what each needs, by kind and component."""

COMPLETE: Final[tuple[str, ...]] = (
    "basic-prompting",
    "blog-writer",
    "custom-component-generator",
    "deep-research-agent",
    "image-sentiment-analysis",
    "instagram-copywriter",
    "memory-chatbot",
    "multi-agent-flow",
    "price-deal-finder",
    "research-translation-loop",
    "saas-pricing",
    "seo-keyword-generator",
    "sequential-tasks-agents",
    "simple-agent",
    "social-media-agent",
    "travel-planning-agents",
    "twitter-thread-generator",
)
"""With a model chosen, these complete."""

NEEDS_A_FILE: Final[dict[str, str]] = {
    "financial-report-parser": "File-NGW2N",
    "portfolio-website-code-generator": "File-wvfA7",
    "text-sentiment-analysis": "File-a3YoT",
}
"""With a model chosen, these complete when the event brings a file for this component."""

FAILS: Final[dict[str, tuple[str, str]]] = {
    "content-aggregator": ("FlowUnready", "SaveToFile-VVVVb"),
    "document-q-a": ("FlowUnready", "KnowledgeRetrieve-docqa"),
    "knowledge-retrieval": ("FlowUnready", "Knowledge-Y8gm2"),
    "vector-store-rag": ("FlowUnready", "Knowledge-vLJOb"),
    "hybrid-search-rag": ("RouteFault", "AstraDB-AkDya"),
    "meeting-summary": ("RouteFault", "AAITranscriber-ms"),
    "market-research": ("RunFailed", "StructuredOutput-zfjb9"),
    **{route: ("EventFault", component) for route, component in NEEDS_A_FILE.items()},
}
"""With a model chosen, these fail all the same: the error and the component that it names."""

REACHES: Final[dict[str, frozenset[str]]] = {"research-translation-loop": frozenset({"export.arxiv.org"})}
"""Where a flow's own components go without being asked by the model."""
